#include "server/shard/data_host.h"

#include <type_traits>
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

constexpr int64_t kPoolQueueMax = int64_t{1} << 24;
// A data shard may have been away while shard 0 started, and a lost file lets
// the number of starts leap by 2^16 (BootNumber), so generations do not rise
// one by one. But a number that no run reaches would lock out all later starts.
constexpr int64_t kStartsMissedMax = int64_t{1} << 20;
constexpr int64_t kGenerationsMissedMax = kStartsMissedMax << 32;

// Shard 0 has one stream and one fetch; the rest is room for the ends of those
// before.
constexpr StreamRegistry::Limits kLinks = {.sessions = 0, .streams = 64};

}  // namespace

DataHost::DataHost(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      streams_(StreamRegistry::LimitsOf(1)),
      links_(kLinks),
      pulls_(PullTable::LimitsOf(1)),
      buffers_(options_.weights_memory),
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

absl::Status DataHost::NotConnected() {
  return absl::UnavailableError(
      "this data shard has no connection to shard 0 of the run");
}

void DataHost::Stop() {
  Actions actions;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    DisconnectLocked(absl::UnavailableError("the data shard is stopping"),
                     actions);
  }
  Do(std::move(actions));
  for (StreamRegistry* registry : {&streams_, &links_}) {
    EndAll(registry->Close(),
           absl::UnavailableError("the data shard is stopping"));
  }
  MutexLock lock(mu_);
  while (running_ > 0) work_done_.Wait(mu_);
}

// ---- shard 0

absl::Status DataHost::Attach(const ShardAttachment& attachment,
                              const std::shared_ptr<CoordinatorStream>& link) {
  Actions actions;
  {
    MutexLock lock(mu_);
    if (stopped_ || leaving_) {
      return absl::UnavailableError("the data shard is stopping");
    }
    const bool same_run = attachment.run_id == attachment_.run_id;
    if (link_ != nullptr && !same_run) {
      return absl::AlreadyExistsError(absl::StrCat(
          "this data shard belongs to run ", attachment_.run_id,
          ", whose shard 0 is connected; use another data shard for run ",
          attachment.run_id));
    }
    if (link_ != nullptr && attachment.generation == attachment_.generation &&
        attachment.place.index != attachment_.place.index) {
      return absl::AlreadyExistsError(absl::StrCat(
          "this data shard is shard ", attachment_.place.index,
          " of the run already; --shard_addresses names it twice, want another "
          "process for shard ",
          attachment.place.index));
    }
    // The same one comes again if the connection was lost before it knew that
    // it was attached.
    if (same_run && attachment.generation < attachment_.generation) {
      return absl::AbortedError(absl::StrCat(
          "got generation ", attachment.generation, " of run ",
          attachment.run_id, ", want at least ", attachment_.generation,
          ": a later start of shard 0 has taken over"));
    }
    const int64_t before = same_run ? attachment_.generation : 0;
    if (attachment.generation - before > kGenerationsMissedMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("got generation ", attachment.generation, " of run ",
                       attachment.run_id, ", want at most ", kStartsMissedMax,
                       " starts after generation ", before));
    }
    // Its connection may have been lost without a word. Then it ends soon, and
    // shard 0 tries again until it has.
    if (link_ != nullptr && !attachment.authenticated) {
      return absl::UnavailableError(absl::StrCat(
          "shard 0 of run ", attachment.run_id,
          " is connected with generation ", attachment_.generation,
          "; without certificates another start takes over only after that "
          "connection has ended"));
    }
    ResetLocked(absl::AbortedError("shard 0 has attached again"), actions);
    link_ = link;
    attachment_ = attachment;
    ++connections_;
    FitStreams(attachment.workers);
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

void DataHost::Leave() {
  std::shared_ptr<CoordinatorStream> link;
  {
    MutexLock lock(mu_);
    leaving_ = true;
    link = link_;
  }
  if (link != nullptr) link->SendLeaving();
}

void DataHost::DisconnectLocked(const absl::Status& why, Actions& actions) {
  ++epoch_;
  if (link_ != nullptr) {
    actions.calls.push_back([link = std::move(link_), why] { link->End(why); });
    link_ = nullptr;
  }
  // Workers come again when the core tells them to.
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
}

void DataHost::ResetLocked(const absl::Status& why, Actions& actions) {
  DisconnectLocked(why, actions);
  actions.garbage.push_back(
      std::make_shared<std::optional<ShardNode>>(std::move(node_)));
  node_.reset();
}

// A command that concerns streams, under the lock. The node carries out the
// others.
struct DataHost::Handler {
  DataHost& host;
  Actions& actions;

  absl::Status operator()(const command::Take& take)
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
    COHORT_ASSIGN_OR_RETURN(actions.folds,
                            host.node_->Hold(std::move(staged->gradient)));
    return absl::OkStatus();
  }
  absl::Status operator()(const command::Refuse& refuse)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    std::optional<Staged> staged = host.UnstageLocked(refuse.ticket, actions);
    if (!staged.has_value()) return absl::OkStatus();
    actions.calls.push_back(
        [from = staged->from, status = refuse.status] { from->End(status); });
    return absl::OkStatus();
  }
  absl::Status operator()(const command::EndRun&) {
    if (host.options_.on_end) actions.calls.push_back(host.options_.on_end);
    return absl::OkStatus();
  }
  template <typename Command>
  absl::Status operator()(const Command& command)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_ASSIGN_OR_RETURN(ShardNode::Consequences led_to,
                            host.node_->Carry(command));
    actions.folds = std::move(led_to.folds);
    if constexpr (std::is_same_v<Command, command::SendWeights>) {
      host.SendLocked(command, *std::move(led_to.weights), actions);
    } else if constexpr (std::is_same_v<Command, command::Adopt>) {
      host.FitStreams(host.node_->workers());
    } else if constexpr (std::is_same_v<Command, command::Commit> ||
                         std::is_same_v<Command, command::Abort>) {
      // There may be a new version.
      host.AnswerReadsLocked(actions);
    }
    actions.garbage.push_back(
        std::make_shared<ShardNode::Consequences>(std::move(led_to)));
    return absl::OkStatus();
  }
};

void DataHost::SendLocked(const command::SendWeights& send,
                          ShardWeights weights, Actions& actions) {
  const std::shared_ptr<ExchangeStream> stream =
      streams_.Exchange(send.rank, send.incarnation);
  if (stream == nullptr) return;
  const int64_t change_bytes = weights.change.size_bytes();
  if (change_bytes > 0) {
    ServiceCounters::Add(counters_.pull_bytes_bfloat16, change_bytes);
  } else {
    ServiceCounters::Add(
        counters_.pull_bytes_float32,
        weights.weights->size() * static_cast<int64_t>(sizeof(float)));
  }
  actions.calls.push_back(
      [stream,
       message = WeightsMessage{.key = send.key,
                                .partition = send.partition,
                                .version = send.version,
                                .weights = std::move(weights.weights),
                                .change = std::move(weights.change),
                                .change_checksum = weights.change_checksum}] {
        Tell(stream, &ExchangeStream::SendWeights, message);
      });
}

absl::Status DataHost::Install(const CoordinatorStream* link,
                               const Installation& installation) {
  // Without the lock: it fills the slots of a whole model, and meanwhile the
  // core must hear that this process is alive.
  COHORT_ASSIGN_OR_RETURN(ShardNode node, ShardNode::Install(installation));
  Actions actions;
  {
    MutexLock lock(mu_);
    COHORT_RETURN_IF_ERROR(CheckLinkLocked(link));
    if (node_.has_value()) {
      return absl::FailedPreconditionError("got a second model");
    }
    node_ = std::move(node);
    FitStreams(node_->workers());
    AnswerReadsLocked(actions);
  }
  Do(std::move(actions));
  return absl::OkStatus();
}

absl::Status DataHost::CheckLinkLocked(const CoordinatorStream* link) const {
  if (link_.get() == link) return absl::OkStatus();
  return absl::AbortedError("a later start of shard 0 has taken over");
}

absl::Status DataHost::Handle(const CoordinatorStream* link,
                              ShardCommand command) {
  Actions actions;
  absl::Status status;
  {
    MutexLock lock(mu_);
    COHORT_RETURN_IF_ERROR(CheckLinkLocked(link));
    const bool needs_model =
        !std::holds_alternative<command::Refuse>(command) &&
        !std::holds_alternative<command::EndRun>(command);
    if (needs_model && !node_.has_value()) {
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

SharedModel DataHost::model() const {
  MutexLock lock(mu_);
  return node_.has_value() ? node_->model() : nullptr;
}

// ---- without the lock

void DataHost::Do(Actions actions) {
  for (FoldJob& job : actions.folds) StartFold(std::move(job), actions.epoch);
  for (absl::AnyInvocable<void()>& call : actions.calls) call();
}

bool DataHost::BeginWork(std::optional<int64_t> epoch) {
  MutexLock lock(mu_);
  if (stopped_ || epoch.value_or(epoch_) != epoch_) return false;
  ++running_;
  return true;
}

void DataHost::EndWork() {
  MutexLock lock(mu_);
  --running_;
  work_done_.NotifyAll();
}

int32_t DataHost::running() const {
  MutexLock lock(mu_);
  return running_;
}

void DataHost::Run(absl::AnyInvocable<void()> work) {
  if (!BeginWork(std::nullopt)) return;
  const absl::Status accepted =
      pool_->Submit([this, work = std::move(work)]() mutable {
        work();
        EndWork();
      });
  COHORT_CHECK(accepted.ok(), accepted.message());
}

void DataHost::StartFold(FoldJob job, int64_t epoch) {
  if (!BeginWork(epoch)) return;
  OnFolded done = [this, epoch](FoldResult result) {
    Folded(epoch, std::move(result));
    EndWork();
  };
  if (options_.fold != nullptr) {
    return options_.fold(std::move(job), std::move(done));
  }
  const absl::Status accepted =
      pool_->Submit([this, job = std::move(job),
                     done = std::move(done)]() mutable { done(Fold(job)); });
  COHORT_CHECK(accepted.ok(), accepted.message());
}

FoldResult DataHost::Fold(FoldJob& job) {
  const Instant begin = clock_.Now();
  FoldResult result = AllOrExit(
      "fold", [&] { return RunFold(job, kernels::CpuBackend(), buffers_); });
  const Instant end = clock_.Now();
  if (options_.on_folded) options_.on_folded(end - begin);
  if (trace_ != nullptr) trace_->Folded(job, begin, end);
  // Frees the gradients' memory before more are sent.
  job = FoldJob();
  MutexLock lock(mu_);
  fold_seconds_.Add(absl::ToDoubleSeconds(end - begin));
  return result;
}

void DataHost::Folded(int64_t epoch, FoldResult result) {
  std::shared_ptr<CoordinatorStream> link;
  FoldReport report;
  {
    MutexLock lock(mu_);
    if (epoch != epoch_ || !node_.has_value()) return;
    report = node_->FoldDone(std::move(result));
    link = link_;
  }
  link->SendFold(report);
}

}  // namespace cohort
