#include "server/shard/data_host.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "server/shard/fault.h"

namespace cohort {
namespace {

// A version that is read is committed already, or shard 0 is gone.
constexpr absl::Duration kReadPatience = absl::Seconds(30);
constexpr int64_t kPoolQueueMax = int64_t{1} << 24;

absl::Status NotConnected() {
  return absl::UnavailableError(
      "this data shard has no connection to shard 0 of the run");
}

}  // namespace

DataHost::DataHost(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      streams_(StreamRegistry::LimitsOf(1)),
      trace_(options_.timeline == nullptr
                 ? nullptr
                 : std::make_unique<ShardTrace>(*options_.timeline)) {
  if (options_.fold != nullptr) return;
  pool_ = std::make_unique<ThreadPool>(
      ThreadPoolOptions{.name = "fold",
                        .threads = options_.fold_threads,
                        .queue_max = kPoolQueueMax});
}

DataHost::~DataHost() { Stop(); }

void DataHost::Stop() {
  Actions actions;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    ResetLocked(absl::UnavailableError("the data shard is stopping"), actions);
  }
  Do(std::move(actions));
  EndAll(streams_.Close(),
         absl::UnavailableError("the data shard is stopping"));
  MutexLock lock(mu_);
  while (folds_running_ > 0) folds_done_.Wait(mu_);
}

void DataHost::CheckStreams() {
  const Instant now = clock_.Now();
  for (const std::shared_ptr<Stream>& stream : streams_.TakeSilent(now)) {
    stream->Cut(absl::DeadlineExceededError(
        "no first message came in time; send it when the call begins"));
  }
  for (const std::shared_ptr<Stream>& stream : streams_.All()) {
    stream->CheckReader(now);
  }
  std::shared_ptr<CoordinatorStream> link;
  std::vector<Waiting> overdue;
  {
    // With the lock, so that a process whose lock is held for ever is silent.
    MutexLock lock(mu_);
    link = link_;
    // In the order in which they came, hence of their ends.
    while (!waiting_.empty() && waiting_.front().until <= now) {
      overdue.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  for (Waiting& waiting : overdue) {
    waiting.done(absl::UnavailableError(
        absl::StrCat("version ", waiting.version.value(), " did not come in ",
                     absl::ToInt64Seconds(kReadPatience), " s; try again")));
  }
  if (link != nullptr) link->SendAlive();
}

// ---- shard 0

absl::Status DataHost::Attach(const ShardAttachment& attachment,
                              const std::shared_ptr<CoordinatorStream>& link) {
  Actions actions;
  {
    MutexLock lock(mu_);
    if (stopped_) return absl::UnavailableError("the data shard is stopping");
    const bool same_run = attachment.run_id == attachment_.run_id;
    if (link_ != nullptr && !same_run) {
      return absl::AlreadyExistsError(absl::StrCat(
          "this data shard belongs to run ", attachment_.run_id,
          ", whose shard 0 is connected; use another data shard for run ",
          attachment.run_id));
    }
    // The same one comes again if the connection was lost before it knew that
    // it was attached.
    if (same_run && attachment.generation < attachment_.generation) {
      return absl::AbortedError(absl::StrCat(
          "got generation ", attachment.generation, " of run ",
          attachment.run_id, ", want at least ", attachment_.generation,
          ": a later start of shard 0 has taken over"));
    }
    ResetLocked(absl::AbortedError("shard 0 has attached again"), actions);
    link_ = link;
    attachment_ = attachment;
    ++connections_;
    streams_.SetLimits(StreamRegistry::LimitsOf(attachment.workers));
  }
  Do(std::move(actions));
  if (options_.on_attach) options_.on_attach(attachment);
  return absl::OkStatus();
}

void DataHost::Detach(const CoordinatorStream* link) {
  Actions actions;
  {
    MutexLock lock(mu_);
    if (link_.get() != link) return;
    ResetLocked(NotConnected(), actions);
  }
  Do(std::move(actions));
  if (options_.on_event) options_.on_event("shard 0 is disconnected");
}

void DataHost::ResetLocked(const absl::Status& why, Actions& actions) {
  ++epoch_;
  if (link_ != nullptr) {
    actions.calls.push_back([link = std::move(link_), why] { link->End(why); });
    link_ = nullptr;
  }
  // Workers come again when shard 0 tells them to.
  actions.calls.push_back([this] { EndAll(streams_.All(), NotConnected()); });
  for (Waiting& waiting : waiting_) {
    actions.calls.push_back(
        [done = std::move(waiting.done)]() mutable { done(NotConnected()); });
  }
  waiting_.clear();
  windows_.clear();
  actions.garbage.push_back(
      std::make_shared<std::map<int64_t, Staged>>(std::move(staged_)));
  staged_.clear();
  actions.garbage.push_back(
      std::make_shared<std::optional<ShardNode>>(std::move(node_)));
  node_.reset();
}

// One command, under the lock.
struct DataHost::Handler {
  DataHost& host;
  Actions& actions;

  ShardNode& node() ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    return *host.node_;
  }
  absl::Status Fold(absl::StatusOr<std::vector<FoldJob>> folds) {
    COHORT_RETURN_IF_ERROR(folds.status());
    for (FoldJob& job : *folds) actions.folds.push_back(std::move(job));
    return absl::OkStatus();
  }
  absl::Status End(absl::StatusOr<std::optional<Transaction>> over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_RETURN_IF_ERROR(over.status());
    actions.garbage.push_back(
        std::make_shared<std::optional<Transaction>>(*std::move(over)));
    host.AnswerReadsLocked(actions);
    return absl::OkStatus();
  }

  absl::Status operator()(shard_command::Install& install)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_ASSIGN_OR_RETURN(ShardNode installed, ShardNode::Install(install));
    host.node_ = std::move(installed);
    host.FitStreamsLocked();
    host.AnswerReadsLocked(actions);
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Adopt& adopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_RETURN_IF_ERROR(node().Adopt(adopt));
    host.FitStreamsLocked();
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Take& take)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    std::optional<Staged> staged = host.UnstageLocked(take.ticket, actions);
    if (!staged.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "take: got ticket ", take.ticket, ", which is not open"));
    }
    const std::shared_ptr<Stream> displaced =
        host.streams_.PutExchange(take.rank, take.incarnation, staged->from);
    if (displaced != nullptr) {
      actions.calls.push_back([displaced] {
        displaced->End(absl::AbortedError(
            "a newer stream of this worker replaced this one"));
      });
    }
    if (!take.held) return absl::OkStatus();
    staged->gradient.push = take.push;
    return Fold(node().Hold(std::move(staged->gradient)));
  }
  absl::Status operator()(const shard_command::Refuse& refuse)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    std::optional<Staged> staged = host.UnstageLocked(refuse.ticket, actions);
    if (!staged.has_value()) return absl::OkStatus();
    actions.calls.push_back(
        [from = staged->from, status = refuse.status] { from->End(status); });
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Drop& drop)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    actions.garbage.push_back(
        std::make_shared<std::vector<HeldGradient>>(node().Drop(drop.push)));
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Prepare& prepare)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    return Fold(node().Prepare(prepare.plan));
  }
  absl::Status operator()(const shard_command::Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    return End(node().Commit(commit));
  }
  absl::Status operator()(const shard_command::Abort& abort)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    return End(node().Abort(abort));
  }
  absl::Status operator()(const shard_command::SendWeights& send)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_ASSIGN_OR_RETURN(ShardWeights weights, node().WeightsOf(send));
    const std::shared_ptr<ExchangeStream> stream =
        host.streams_.Exchange(send.rank, send.incarnation);
    if (stream == nullptr) return absl::OkStatus();
    const int64_t change_bytes = weights.change.size_bytes();
    if (change_bytes > 0) {
      ServiceCounters::Add(host.counters_.pull_bytes_bfloat16, change_bytes);
    } else {
      ServiceCounters::Add(
          host.counters_.pull_bytes_float32,
          weights.weights->size() * static_cast<int64_t>(sizeof(float)));
    }
    actions.calls.push_back(
        [stream, message = effect::SendWeights{
                     .rank = send.rank,
                     .incarnation = send.incarnation,
                     .key = send.key,
                     .partition = send.partition,
                     .version = send.version,
                     .weights = std::move(weights.weights),
                     .takes_change = send.takes_change,
                     .change = std::move(weights.change),
                     .change_checksum = weights.change_checksum}] {
          stream->SendWeights(message);
        });
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Scale& scale)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    return Fold(node().Scale(scale));
  }
  absl::Status operator()(const shard_command::EndRun&) {
    if (host.options_.on_end) actions.calls.push_back(host.options_.on_end);
    return absl::OkStatus();
  }
};

absl::Status DataHost::Handle(const CoordinatorStream* link,
                              ShardCommand command) {
  Actions actions;
  absl::Status status;
  {
    MutexLock lock(mu_);
    if (link_.get() != link) {
      return absl::AbortedError("a later start of shard 0 has taken over");
    }
    const bool installs =
        std::holds_alternative<shard_command::Install>(command);
    const bool needs_model =
        !installs && !std::holds_alternative<shard_command::Refuse>(command) &&
        !std::holds_alternative<shard_command::EndRun>(command);
    if (installs && node_.has_value()) {
      status = absl::FailedPreconditionError("got a second model");
    } else if (needs_model && !node_.has_value()) {
      status = absl::FailedPreconditionError(
          "got a command that needs a model before the model");
    } else {
      actions.epoch = epoch_;
      status = std::visit(Handler{*this, actions}, command);
    }
  }
  Do(std::move(actions));
  return status;
}

void DataHost::Fetch(const std::string& run_id, int64_t generation,
                     Version version, OnRead done) {
  absl::Status same;
  {
    MutexLock lock(mu_);
    if (generation != attachment_.generation) {
      same =
          absl::AbortedError(absl::StrCat("fetch: got generation ", generation,
                                          ", want ", attachment_.generation));
    }
  }
  if (!same.ok()) return done(same);
  Read(run_id, version, std::move(done));
}

// ---- workers

absl::StatusOr<Admission> DataHost::Gradient(
    const Sender& sender, const PushKey& key, GradientMessage message,
    const std::shared_ptr<ExchangeStream>& from) {
  RemoteGradient told{.sender = sender, .key = key};
  std::shared_ptr<CoordinatorStream> link;
  Admission admission = Admission::kTaken;
  {
    MutexLock lock(mu_);
    if (link_ == nullptr) return NotConnected();
    COHORT_RETURN_IF_ERROR(CheckRunId(sender.run_id, attachment_.run_id));
    link = link_;
    const int64_t ticket = next_ticket_++;
    told.message = {.partition = message.partition,
                    .type = message.type,
                    .sampled_checksum = message.sampled_checksum,
                    .absent_slices = message.absent_slices,
                    .ticket = ticket,
                    .remote_bytes = message.gradient.size_bytes()};
    staged_.emplace(
        ticket,
        Staged{.sender = sender,
               .gradient = {.partition = message.partition,
                            .gradient = std::move(message.gradient),
                            .type = message.type,
                            .absent_slices = std::move(message.absent_slices)},
               .from = from});
    Window& window = windows_[from.get()];
    if (++window.staged >= kStagedMax) {
      window.paused = true;
      admission = Admission::kPaused;
    }
  }
  link->SendGradient(told);
  ServiceCounters::Add(told.message.type == ElementType::kBFloat16
                           ? counters_.push_bytes_bfloat16
                           : counters_.push_bytes_float32,
                       told.message.remote_bytes);
  return admission;
}

std::optional<DataHost::Staged> DataHost::UnstageLocked(int64_t ticket,
                                                        Actions& actions) {
  auto node = staged_.extract(ticket);
  if (node.empty()) return std::nullopt;
  Staged staged = std::move(node.mapped());
  const auto at = windows_.find(staged.from.get());
  COHORT_CHECK(at != windows_.end(), "a staged gradient has no window");
  Window& window = at->second;
  --window.staged;
  if (std::exchange(window.paused, false)) {
    actions.calls.push_back([from = staged.from, sender = staged.sender] {
      from->Resume({.rank = sender.rank, .incarnation = sender.incarnation});
    });
  }
  if (window.staged == 0) windows_.erase(at);
  return staged;
}

void DataHost::Read(const std::string& run_id, Version version, OnRead done) {
  absl::StatusOr<SharedSnapshot> answer = NotConnected();
  {
    MutexLock lock(mu_);
    if (link_ != nullptr) {
      const absl::Status same = CheckRunId(run_id, attachment_.run_id);
      const SharedSnapshot held =
          node_.has_value() ? node_->Read(version) : nullptr;
      if (!same.ok()) {
        answer = same;
      } else if (held != nullptr) {
        answer = held;
      } else if (!node_.has_value() || version > node_->newest()) {
        waiting_.push_back({.version = version,
                            .until = clock_.Now() + kReadPatience,
                            .done = std::move(done)});
        return;
      } else {
        answer = absl::OutOfRangeError(
            absl::StrCat("version ", version.value(), " is not held"));
      }
    }
  }
  done(std::move(answer));
}

void DataHost::FitStreamsLocked() {
  streams_.SetLimits(StreamRegistry::LimitsOf(node_->workers()));
}

void DataHost::AnswerReadsLocked(Actions& actions) {
  std::deque<Waiting> still;
  for (Waiting& waiting : waiting_) {
    if (waiting.version > node_->newest()) {
      still.push_back(std::move(waiting));
      continue;
    }
    absl::StatusOr<SharedSnapshot> answer = node_->Read(waiting.version);
    if (*answer == nullptr) {
      answer = absl::OutOfRangeError(
          absl::StrCat("version ", waiting.version.value(), " is not held"));
    }
    actions.calls.push_back(
        [done = std::move(waiting.done), answer = std::move(answer)]() mutable {
          done(std::move(answer));
        });
  }
  waiting_ = std::move(still);
}

bool DataHost::attached() const {
  MutexLock lock(mu_);
  return link_ != nullptr;
}

SharedModel DataHost::model() const {
  MutexLock lock(mu_);
  return node_.has_value() ? node_->model() : nullptr;
}

// ---- without the lock

void DataHost::Do(Actions actions) {
  for (FoldJob& job : actions.folds) StartFold(std::move(job), actions.epoch);
  for (absl::AnyInvocable<void()>& call : actions.calls) call();
}

void DataHost::StartFold(FoldJob job, int64_t epoch) {
  {
    MutexLock lock(mu_);
    if (stopped_ || epoch != epoch_) return;
    ++folds_running_;
  }
  OnFolded done = [this, epoch](FoldResult result) {
    Folded(epoch, std::move(result));
  };
  if (options_.fold != nullptr) {
    options_.fold(std::move(job), std::move(done));
  } else {
    RunOnPool(std::move(job), std::move(done));
  }
}

void DataHost::RunOnPool(FoldJob job, OnFolded done) {
  const absl::Status accepted = pool_->Submit(
      [this, job = std::move(job), done = std::move(done)]() mutable {
        const Instant begin = clock_.Now();
        FoldResult result = AllOrExit("fold", [&] {
          return RunFold(job, kernels::CpuBackend(), buffers_);
        });
        const Instant end = clock_.Now();
        if (trace_ != nullptr) trace_->Folded(job, begin, end);
        // Frees the gradients' memory before more are sent.
        job = FoldJob();
        {
          MutexLock lock(mu_);
          fold_seconds_.Add(absl::ToDoubleSeconds(end - begin));
        }
        done(std::move(result));
      });
  COHORT_CHECK(accepted.ok(), accepted.message());
}

void DataHost::Folded(int64_t epoch, FoldResult result) {
  Actions actions;
  {
    MutexLock lock(mu_);
    if (epoch == epoch_ && node_.has_value()) {
      actions.epoch = epoch_;
      const FoldReport report =
          node_->FoldDone(std::move(result), actions.folds);
      actions.calls.push_back(
          [link = link_, report] { link->SendFold(report); });
    }
  }
  Do(std::move(actions));
  MutexLock lock(mu_);
  --folds_running_;
  folds_done_.NotifyAll();
}

}  // namespace cohort
