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
    ResetLocked(absl::UnavailableError("the data shard is stopping"), actions);
  }
  Do(std::move(actions));
  for (StreamRegistry* registry : {&streams_, &links_}) {
    EndAll(registry->Close(),
           absl::UnavailableError("the data shard is stopping"));
  }
  MutexLock lock(mu_);
  while (folds_running_ > 0) folds_done_.Wait(mu_);
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
  // Made by an Install, before the lock was taken.
  std::optional<ShardNode> installed;

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

  absl::Status operator()(const shard_command::Install&)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    host.node_ = std::move(installed);
    host.FitStreams(node().workers());
    host.AnswerReadsLocked(actions);
    return absl::OkStatus();
  }
  absl::Status operator()(const shard_command::Adopt& adopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_RETURN_IF_ERROR(node().Adopt(adopt));
    host.FitStreams(node().workers());
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
          Tell(stream, &ExchangeStream::SendWeights, message);
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
  std::optional<ShardNode> installed;
  const auto* const install = std::get_if<shard_command::Install>(&command);
  if (install != nullptr) {
    // Without the lock: it fills the slots of a whole model, and meanwhile
    // shard 0 must hear that this process is alive.
    COHORT_ASSIGN_OR_RETURN(installed, ShardNode::Install(*install));
  }
  {
    MutexLock lock(mu_);
    if (link_.get() != link) {
      return absl::AbortedError("a later start of shard 0 has taken over");
    }
    const bool needs_model =
        install == nullptr &&
        !std::holds_alternative<shard_command::Refuse>(command) &&
        !std::holds_alternative<shard_command::EndRun>(command);
    if (install != nullptr && node_.has_value()) {
      status = absl::FailedPreconditionError("got a second model");
    } else if (needs_model && !node_.has_value()) {
      status = absl::FailedPreconditionError(
          "got a command that needs a model before the model");
    } else {
      actions.epoch = epoch_;
      status =
          std::visit(Handler{*this, actions, std::move(installed)}, command);
    }
  }
  Do(std::move(actions));
  return status;
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
      const FoldReport report = node_->FoldDone(std::move(result));
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
