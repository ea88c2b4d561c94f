#include "server/ctl/run/cluster_run.h"

#include <signal.h>

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "server/ctl/admin_client.h"

namespace cohort {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(50);
// The cause of a worker's end may also be about to end the server, whose exit
// code then says more.
constexpr absl::Duration kServerEndMax = absl::Seconds(5);
// The server is on this machine; nothing else may wait long for its answer.
constexpr absl::Duration kAskMax = absl::Seconds(2);

// Explains why a server ended before it could be reached.
std::string WhyNotListening(const ProcessEnd& end) {
  constexpr absl::string_view kAbove =
      "it did not come to listen; why stands above";
  if (end.code != kExitUsage) return std::string(kAbove);
  return absl::StrCat(kAbove,
                      ". What stands behind -- are flags of the "
                      "workers, what stands before it those of the "
                      "server: run --epochs=2 -- --model=cnn");
}

}  // namespace

ClusterRun::ClusterRun(ClusterRunOptions options, RunScreen& screen, CtlIo& io)
    : options_(std::move(options)), screen_(screen), io_(io) {}

ClusterHooks ClusterRun::Hooks() {
  return {.on_start = [this](const ClusterProcess& process,
                             pid_t pid) { screen_.ShowStart(process, pid); },
          .on_line =
              [this](const ClusterProcess& process, absl::string_view line) {
                screen_.ShowLine(process, line);
              },
          .on_end = [this](const ClusterProcess& process,
                           const ProcessEnd& end) { OnEnd(process, end); }};
}

absl::StatusOr<int> ClusterRun::Run() {
  // From here on a signal stops the run in order.
  LookForSignal();
  if (interrupted_) return 128 + io_.signal();
  COHORT_ASSIGN_OR_RETURN(
      cluster_, LocalCluster::Start(options_.spec, Hooks(), io_.clock));
  bool told = false;
  while (!cluster_->done()) {
    const absl::Status status = cluster_->Poll(kRound);
    if (failure_.ok()) failure_ = status;
    if (!told && !cluster_->address().empty()) {
      told = true;
      screen_.Say(absl::StrCat("to look at it: ", WatchCommand()));
    }
    LookForSignal();
    LookForDeadline();
  }
  return Outcome();
}

void ClusterRun::OnEnd(const ClusterProcess& process, const ProcessEnd& end) {
  screen_.RecordEnd(process, end);
  // Only starts that lead to nothing are limited.
  if (end.made_step) restarts_.erase(process);
  if (process.is_server()) {
    // The server ended as requested.
    const bool stopped = stopping_ && end.signal == SIGTERM;
    if (end.code == 0 || interrupted_ || stopped) return;
    const bool listened = !cluster_->address().empty();
    screen_.ShowEnd(process, end, listened ? "" : WhyNotListening(end));
    return;
  }
  if (!process.is_worker()) return OnDataShardEnded(process, end);
  worker_ends_[process] = end;
  if (end.code == 0) return OnWorkerLeft(process);
  if (cluster_->server_end().has_value() || stopping_ || given_up_) {
    // If it was stopped, its signal number needs no message.
    if (end.signal == 0 || !stopping_) screen_.ShowEnd(process, end, "");
    return;
  }
  OnWorkerLost(process, end);
}

// One line to paste into another terminal, where it also sets what further
// commands need.
std::string ClusterRun::WatchCommand() const {
  const TlsFiles& tls = options_.spec.certificates.client;
  if (!tls.encrypted()) {
    return absl::StrCat(io_.program,
                        " watch --server=", ShellWord(cluster_->address()));
  }
  return absl::StrCat("export COHORT_SERVER=", ShellWord(cluster_->address()),
                      " COHORT_TLS_CERT=", ShellWord(tls.cert),
                      " COHORT_TLS_KEY=", ShellWord(tls.key),
                      " COHORT_TLS_CA=", ShellWord(tls.ca), "; ", io_.program,
                      " watch");
}

ServerTarget ClusterRun::Target() const {
  return {.server = cluster_->address(),
          .tls = options_.spec.certificates.client};
}

// Reports a worker that was drained or whose script left its loop, but not one
// whose run is over.
void ClusterRun::OnWorkerLeft(const ClusterProcess& worker) {
  if (cluster_->server_end().has_value() || stopping_ || given_up_) return;
  AdminClient server(Target(), kAskMax);
  const absl::StatusOr<v1::Status> status = server.GetStatus();
  if (!status.ok() || status->ended()) return;
  if (cluster_->workers_running() == 0) {
    screen_.Say("no worker is left, so the run is drained");
    // If it fails, the server is about to end.
    v1::DrainRequest request;
    request.set_reason("no worker is left");
    (void)server.Drain(request);
    return;
  }
  screen_.Say(
      absl::StrCat(worker.Name(),
                   " has left and is not started again; if the run waits for "
                   "it, start cohort-worker with its flags, --server=",
                   cluster_->address(), " and --rank=", worker.number));
}

// The server's settings take precedence: its policy may have been changed while
// it runs, and a checkpoint has its own.
SizeRule ClusterRun::RuleInForce() const {
  SizeRule rule{.workers_min = options_.spec.workers_min};
  rule.waits = rule.workers_min == 0 && options_.on_worker_loss == "wait";
  AdminClient server(Target(), kAskMax);
  const absl::StatusOr<v1::GetPolicyReply> policy = server.GetPolicy();
  if (!policy.ok()) return rule;
  const auto loss = policy->settings().find("on_worker_loss");
  if (loss != policy->settings().end()) rule.waits = loss->second == "wait";
  const auto size = policy->settings().find("workers");
  if (size != policy->settings().end()) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(size->second, absl::MaxSplits(':', 1));
    rule.workers_min = 0;
    if (!ends.second.empty()) {
      (void)absl::SimpleAtoi(ends.first, &rule.workers_min);
    }
  }
  return rule;
}

bool ClusterRun::RunIsOver() const {
  const absl::StatusOr<v1::Status> status =
      AdminClient(Target(), kAskMax).GetStatus();
  return status.ok() && status->ended();
}

std::string ClusterRun::WhyNot(const ClusterProcess& process,
                               const ProcessEnd& end) const {
  const auto restarts = restarts_.find(process);
  return WhyNotAgain(
      {.code = end.code,
       .restarts = restarts == restarts_.end() ? 0 : restarts->second,
       .restarts_max = options_.max_restarts},
      "--max_restarts");
}

void ClusterRun::OnWorkerLost(const ClusterProcess& worker,
                              const ProcessEnd& end) {
  // Workers of a run that failed end with an error, too.
  if (RunIsOver()) return screen_.ShowEnd(worker, end, "the run is over");
  const SizeRule rule = RuleInForce();
  const std::string why_not = WhyNot(worker, end);
  const int32_t left = cluster_->workers_running();
  switch (DecideAfterLoss(why_not.empty(), rule, left)) {
    case AfterLoss::kStartAgain:
      return Restart(worker, end);
    case AfterLoss::kContinueWithout:
      return screen_.ShowEnd(worker, end, "the run continues without it");
    case AfterLoss::kStopRun:
      break;
  }
  std::string why = "it was the last one";
  if (rule.waits) {
    why = why_not;
  } else if (rule.workers_min > 1) {
    why = absl::StrCat(why_not, ", and ", left,
                       left == 1 ? " worker is" : " workers are",
                       " fewer than ", rule.workers_min);
  }
  GiveUp(worker, end, absl::StrCat(why, ", so the run is stopped"));
}

// All shards then continue from the newest checkpoint by themselves.
void ClusterRun::OnDataShardEnded(const ClusterProcess& shard,
                                  const ProcessEnd& end) {
  // It ends by itself, just before the server, when the run is over; if it was
  // stopped, its code is another.
  if (end.code == 0 || cluster_->server_end().has_value() || stopping_ ||
      given_up_) {
    return;
  }
  const std::string why_not = cluster_->address().empty()
                                  ? "it did not come to listen"
                                  : WhyNot(shard, end);
  if (why_not.empty()) return Restart(shard, end);
  GiveUp(shard, end, absl::StrCat(why_not, ", so the run is stopped"));
}

void ClusterRun::Restart(const ClusterProcess& process, const ProcessEnd& end) {
  const int32_t count = ++restarts_[process];
  screen_.ShowEnd(process, end,
                  absl::StrCat("it is started again, ", count, " of ",
                               options_.max_restarts, " times"));
  const absl::Status started = cluster_->Restart(process);
  if (started.ok()) return;
  failure_ = started;
  stopping_ = true;
  cluster_->RequestStop();
}

void ClusterRun::GiveUp(const ClusterProcess& worker, const ProcessEnd& end,
                        absl::string_view why) {
  screen_.ShowEnd(worker, end, why);
  given_up_ = {.code = end.code,
               .may_go_on = !WouldEndSoAgain(end.code),
               .deadline = io_.clock.Now() + kServerEndMax};
}

void ClusterRun::LookForDeadline() {
  if (!given_up_.has_value() || stopping_ ||
      cluster_->server_end().has_value() ||
      io_.clock.Now() < given_up_->deadline) {
    return;
  }
  stopping_ = true;
  cluster_->RequestStop();
}

void ClusterRun::LookForSignal() {
  if (interrupted_ || io_.pause(absl::ZeroDuration())) return;
  interrupted_ = true;
  if (cluster_ == nullptr) return;
  stopping_ = true;
  screen_.Say(
      "stopping: first the server, which keeps what it has, then the workers; "
      "once more kills them all");
  cluster_->RequestStop();
}

absl::StatusOr<int> ClusterRun::Outcome() const {
  if (!failure_.ok()) return failure_;
  const ProcessEnd& server = *cluster_->server_end();
  if (interrupted_) {
    SayHowToGoOn();
    // If the server was killed, or could not save its state, that matters more.
    const bool as_asked = server.code == 0 || server.signal == SIGTERM;
    return as_asked ? 128 + io_.signal() : server.code;
  }
  // The server was stopped because of the worker.
  if (given_up_.has_value() && stopping_) {
    if (given_up_->may_go_on) SayHowToGoOn();
    return given_up_->code;
  }
  if (server.signal != 0 && !cluster_->address().empty()) SayHowToGoOn();
  if (server.code != 0) return server.code;
  for (const auto& [worker, end] : worker_ends_) {
    if (end.code == 0) continue;
    screen_.Say(absl::StrCat("the server ended well, but ", worker.Name(), " ",
                             end.Text(), ", so the exit code is ", end.code));
    return end.code;
  }
  return 0;
}

void ClusterRun::SayHowToGoOn() const {
  screen_.Say(
      options_.resume_command.empty()
          ? "no checkpoint to continue from; --checkpoint_dir=DIR keeps one"
          : absl::StrCat("to continue: ", options_.resume_command));
}

}  // namespace cohort
