#include "server/partitions/partitions_host.h"

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "server/core/optimizer/slots.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

// The values of all ranks may be in transfer at once; half of the memory stays
// for the run itself.
int64_t RegistrationBytesMax(int64_t memory_bytes) {
  constexpr int64_t kUnknown = int64_t{16} << 30;
  return memory_bytes <= 0 ? kUnknown : memory_bytes / 2;
}

const char* PassName(FoldPass pass) {
  constexpr const char* kNames[] = {"whole", "gradient", "norms", "update"};
  return kNames[static_cast<size_t>(pass)];
}

constexpr int64_t kPoolQueueMax = int64_t{1} << 24;
// A data shard may have been away while shard 0 started, and a lost file lets
// the number of starts leap by 2^16 (BootNumber), so generations do not rise
// one by one. But a number that no run reaches would lock out all later starts.
constexpr int64_t kStartsMissedMax = int64_t{1} << 20;
constexpr int64_t kGenerationsMissedMax = kStartsMissedMax << 32;

// Shard 0 has one stream and one fetch; the rest is room for the ends of those
// before.
constexpr StreamRegistry::Limits kLinks = {.sessions = 0, .streams = 64};

// A version that may come is committed already, or shard 0 is gone.
constexpr absl::Duration kReadPatience = absl::Seconds(30);

}  // namespace

PartitionsHost::PartitionsHost(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      streams_(StreamRegistry::LimitsOf(1)),
      links_(kLinks),
      pulls_(PullTable::LimitsOf(1)),
      registrations_(RegistrationBytesMax(options_.memory_bytes)),
      buffers_(options_.weights_memory),
      trace_(options_.timeline == nullptr
                 ? nullptr
                 : std::make_unique<RunTrace>(*options_.timeline)) {
  if (options_.fold != nullptr) return;
  pool_ = std::make_unique<ThreadPool>(
      ThreadPoolOptions{.name = "fold",
                        .threads = options_.fold_threads,
                        .queue_max = kPoolQueueMax});
}

PartitionsHost::~PartitionsHost() { Stop(); }

absl::Status PartitionsHost::NotConnected() {
  return absl::UnavailableError(
      "this data shard has no connection to shard 0 of the run");
}

void PartitionsHost::CloseStreams(const absl::Status& why) {
  for (StreamRegistry* registry : {&streams_, &links_}) {
    EndAll(registry->Close(), why);
  }
}

void PartitionsHost::Stop() {
  Actions actions;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    DisconnectLocked(absl::UnavailableError("the data shard is stopping"),
                     actions);
  }
  Do(std::move(actions));
  MutexLock lock(mu_);
  while (running_ > 0) work_done_.Wait(mu_);
}

// ---- shard 0

absl::Status PartitionsHost::Attach(
    const ShardAttachment& attachment,
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

void PartitionsHost::Detach(const CoordinatorStream* link) {
  Actions actions;
  {
    MutexLock lock(mu_);
    if (link_.get() != link) return;
    ResetLocked(NotConnected(), actions);
  }
  Do(std::move(actions));
  if (options_.on_event) options_.on_event("shard 0 is disconnected");
}

void PartitionsHost::Leave() {
  std::shared_ptr<CoordinatorStream> link;
  {
    MutexLock lock(mu_);
    leaving_ = true;
    link = link_;
  }
  if (link != nullptr) link->SendLeaving();
}

void PartitionsHost::DisconnectLocked(const absl::Status& why,
                                      Actions& actions) {
  ++resets_;
  if (link_ != nullptr) {
    actions.calls.push_back([link = std::move(link_), why] { link->End(why); });
    link_ = nullptr;
  }
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

void PartitionsHost::ResetLocked(const absl::Status& why, Actions& actions) {
  DisconnectLocked(why, actions);
  // Workers come again when the core tells them to.
  actions.calls.push_back([this] { EndAll(streams_.All(), NotConnected()); });
  actions.garbage.push_back(
      std::make_shared<std::optional<Partitions>>(std::move(node_)));
  node_.reset();
}

// A command that concerns streams, under the lock. The node carries out the
// others.
struct PartitionsHost::Handler {
  PartitionsHost& host;
  Actions& actions;

  // Its bytes are freed without the lock.
  void Discard(Staged staged) {
    actions.garbage.push_back(std::make_shared<Staged>(std::move(staged)));
  }

  absl::Status operator()(const command::Take& take)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    std::optional<Staged> staged = host.UnstageLocked(take.ticket, actions);
    if (!staged.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "take: got ticket ", take.ticket, ", which is not open"));
    }
    const std::shared_ptr<Stream> displaced =
        host.streams_.Put(take.rank, take.incarnation, staged->from);
    if (displaced != nullptr) {
      actions.calls.push_back([displaced] { EndDisplaced(displaced); });
    }
    if (!take.held) {
      Discard(*std::move(staged));
      return absl::OkStatus();
    }
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
    Discard(*std::move(staged));
    return absl::OkStatus();
  }
  absl::Status operator()(const command::EndRun&) {
    if (host.options_.on_end) actions.calls.push_back(host.options_.on_end);
    return absl::OkStatus();
  }
  template <typename Command>
  absl::Status operator()(const Command& command)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(host.mu_) {
    COHORT_ASSIGN_OR_RETURN(Partitions::Consequences led_to,
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
        std::make_shared<Partitions::Consequences>(std::move(led_to)));
    return absl::OkStatus();
  }
};

void PartitionsHost::SendLocked(const command::SendWeights& send,
                                PartitionWeights weights, Actions& actions) {
  const std::shared_ptr<ExchangeStream> stream =
      streams_.Find<ExchangeStream>(send.rank, send.incarnation);
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

absl::Status PartitionsHost::Install(const CoordinatorStream* link,
                                     const Installation& installation) {
  // Without the lock: it fills the slots of a whole model, during which the
  // core must hear that this process is alive.
  COHORT_ASSIGN_OR_RETURN(Partitions node, Partitions::Install(installation));
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

absl::Status PartitionsHost::CheckLinkLocked(
    const CoordinatorStream* link) const {
  if (link_.get() == link) return absl::OkStatus();
  return absl::AbortedError("a later start of shard 0 has taken over");
}

absl::Status PartitionsHost::Handle(const CoordinatorStream* link,
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
      actions.resets = resets_;
      status = std::visit(Handler{*this, actions}, command);
    }
  }
  Do(std::move(actions));
  return status;
}

SharedModel PartitionsHost::model() const {
  MutexLock lock(mu_);
  return node_.has_value() ? node_->model() : nullptr;
}

// ---- without the lock

void PartitionsHost::Do(Actions actions) {
  for (FoldJob& job : actions.folds) StartFold(std::move(job), actions.resets);
  for (absl::AnyInvocable<void()>& call : actions.calls) call();
}

bool PartitionsHost::BeginWork(std::optional<int64_t> resets) {
  MutexLock lock(mu_);
  if (stopped_ || resets.value_or(resets_) != resets_) return false;
  ++running_;
  return true;
}

void PartitionsHost::EndWork() {
  MutexLock lock(mu_);
  --running_;
  work_done_.NotifyAll();
}

void PartitionsHost::Run(absl::AnyInvocable<void()> work) {
  if (!BeginWork(std::nullopt)) return;
  const absl::Status accepted =
      pool_->Submit([this, work = std::move(work)]() mutable {
        work();
        EndWork();
      });
  COHORT_CHECK(accepted.ok(), accepted.message());
}

void PartitionsHost::StartFold(FoldJob job, int64_t resets) {
  if (!BeginWork(resets)) return;
  OnFolded done = [this, resets](FoldResult result) {
    Folded(resets, std::move(result));
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

FoldResult PartitionsHost::Fold(FoldJob& job) {
  const Instant begin = clock_.Now();
  FoldResult result = AllOrExit(
      "fold", [&] { return RunFold(job, kernels::CpuBackend(), buffers_); });
  const Instant end = clock_.Now();
  if (options_.on_folded) options_.on_folded(end - begin);
  if (trace_ != nullptr) {
    trace_->Folded(
        {.transaction = job.transaction,
         .partition = job.partition,
         .pass = PassName(job.pass),
         .contributions = static_cast<int64_t>(job.contributions.size()),
         .begin = begin,
         .end = end});
  }
  // Frees the gradients' memory before more are sent.
  job = FoldJob();
  MutexLock lock(mu_);
  fold_seconds_.Add(absl::ToDoubleSeconds(end - begin));
  return result;
}

void PartitionsHost::Folded(int64_t resets, FoldResult result) {
  std::shared_ptr<CoordinatorStream> link;
  FoldReport report;
  {
    MutexLock lock(mu_);
    if (resets != resets_ || !node_.has_value()) return;
    report = node_->FoldDone(std::move(result));
    link = link_;
  }
  link->SendFold(report);
}

// ---- streams of workers

absl::Status PartitionsHost::Admit(StreamRegistry& to,
                                   const std::shared_ptr<Stream>& stream,
                                   bool speaks) {
  std::optional<Instant> speak_by;
  if (speaks) speak_by = clock_.Now() + kFirstMessageDeadline;
  StreamRegistry::Streams evicted;
  const absl::Status admitted = to.Admit(stream, speak_by, &evicted);
  EndEvicted(evicted);
  return admitted;
}

void PartitionsHost::CheckStreams(bool readers) {
  const Instant now = clock_.Now();
  for (StreamRegistry* registry : {&streams_, &links_}) {
    EndAll(registry->TakeSilent(now),
           absl::DeadlineExceededError(absl::StrCat(
               "got no message in time, want a join within ",
               absl::FormatDuration(kJoinDeadline),
               " of opening a session, and a first message within ",
               absl::FormatDuration(kFirstMessageDeadline),
               " of opening any other stream")));
  }
  for (const auto& pull : pulls_.Tick(now)) pull->SendPartition();
  EndOverdueReads();
  if (!readers) return;
  for (StreamRegistry* registry : {&streams_, &links_}) {
    for (const auto& stream : registry->All()) stream->CheckReader(now);
  }
  std::shared_ptr<CoordinatorStream> link;
  {
    // With the lock, so that a process whose lock is held for ever is silent.
    MutexLock lock(mu_);
    link = link_;
  }
  if (link != nullptr) link->SendAlive();
}

void PartitionsHost::EndOverdueReads() {
  const Instant now = clock_.Now();
  std::vector<Waiting> overdue;
  {
    MutexLock lock(mu_);
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
}

absl::StatusOr<Reading> PartitionsHost::Gradient(
    const Sender& sender, const PushKey& key, ReceivedGradient gradient,
    const std::shared_ptr<ExchangeStream>& from) {
  const int64_t bytes = gradient.bytes.size_bytes();
  const ElementType type = gradient.about.type;
  RemoteGradient described{
      .sender = sender, .key = key, .gradient = gradient.about};
  described.gradient.bytes = bytes;
  std::shared_ptr<CoordinatorStream> link;
  Reading reading = Reading::kGoesOn;
  {
    MutexLock lock(mu_);
    if (link_ == nullptr) return NotConnected();
    COHORT_RETURN_IF_ERROR(CheckRunId(sender.run_id, attachment_.run_id));
    link = link_;
    described.gradient.ticket = next_ticket_++;
    staged_.emplace(described.gradient.ticket,
                    Staged{.gradient = {.partition = gradient.about.partition,
                                        .gradient = std::move(gradient.bytes),
                                        .type = type,
                                        .absent_slices = std::move(
                                            gradient.about.absent_slices)},
                           .from = from});
    Window& window = windows_[from.get()];
    if (++window.staged >= options_.staged_max) {
      window.paused = true;
      reading = Reading::kPaused;
    }
  }
  link->SendGradient(described);
  ServiceCounters::Add(type == ElementType::kBFloat16
                           ? counters_.push_bytes_bfloat16
                           : counters_.push_bytes_float32,
                       bytes);
  return reading;
}

std::optional<PartitionsHost::Staged> PartitionsHost::UnstageLocked(
    int64_t ticket, Actions& actions) {
  auto node = staged_.extract(ticket);
  if (node.empty()) return std::nullopt;
  Staged staged = std::move(node.mapped());
  const auto at = windows_.find(staged.from.get());
  COHORT_CHECK(at != windows_.end(), "a staged gradient has no window");
  Window& window = at->second;
  --window.staged;
  if (std::exchange(window.paused, false)) {
    actions.calls.push_back([from = staged.from] { from->Resume(); });
  }
  if (window.staged == 0) windows_.erase(at);
  return staged;
}

absl::Status PartitionsHost::ServesLocked(const ReaderBelief& belief) const {
  if (link_ == nullptr) return NotConnected();
  COHORT_RETURN_IF_ERROR(CheckRunId(belief.run_id, attachment_.run_id));
  if (belief.shard.has_value() && *belief.shard != attachment_.place.index) {
    return absl::FailedPreconditionError(
        absl::StrCat("got a call for shard ", *belief.shard,
                     ", but this is shard ", attachment_.place.index,
                     "; the addresses lead to different processes from here "
                     "and from the run's server"));
  }
  if (belief.generation.has_value() &&
      *belief.generation != attachment_.generation) {
    return absl::UnavailableError(
        absl::StrCat("got generation ", *belief.generation, ", want ",
                     attachment_.generation,
                     ": all shards have restarted; ask shard 0 again"));
  }
  return absl::OkStatus();
}

absl::Status PartitionsHost::Serves(const ReaderBelief& belief) const {
  MutexLock lock(mu_);
  return ServesLocked(belief);
}

void PartitionsHost::Read(const ReaderBelief& belief, Version version,
                          OnRead done) {
  absl::StatusOr<SharedSnapshot> answer;
  {
    MutexLock lock(mu_);
    const absl::Status serves = ServesLocked(belief);
    const SharedSnapshot held =
        node_.has_value() ? node_->Read(version) : nullptr;
    if (!serves.ok()) {
      answer = serves;
    } else if (held != nullptr) {
      answer = held;
    } else if (!node_.has_value() || node_->MayCome(version)) {
      waiting_.push_back({.version = version,
                          .until = clock_.Now() + kReadPatience,
                          .done = std::move(done)});
      return;
    } else {
      answer = absl::OutOfRangeError(absl::StrCat(
          "got version ", version.value(),
          ", which is not held; the newest is ", node_->newest().value()));
    }
  }
  done(std::move(answer));
}

SharedSnapshot PartitionsHost::Held(Version version) const {
  MutexLock lock(mu_);
  return node_.has_value() ? node_->Read(version) : nullptr;
}

void PartitionsHost::FitStreams(int32_t workers) {
  streams_.SetLimits(StreamRegistry::LimitsOf(workers));
  pulls_.SetLimits(PullTable::LimitsOf(workers));
}

void PartitionsHost::AnswerReadsLocked(Actions& actions) {
  std::deque<Waiting> still;
  for (Waiting& waiting : waiting_) {
    if (node_->MayCome(waiting.version)) {
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

// ---- for display

DataShardFigures PartitionsHost::figures() const {
  DataShardFigures figures;
  figures.service = {
      .inflight_bytes = gradient_bytes_.held_bytes(),
      .push_bytes_float32 = ServiceCounters::Read(counters_.push_bytes_float32),
      .push_bytes_bfloat16 =
          ServiceCounters::Read(counters_.push_bytes_bfloat16),
      .pull_bytes_float32 = ServiceCounters::Read(counters_.pull_bytes_float32),
      .pull_bytes_bfloat16 =
          ServiceCounters::Read(counters_.pull_bytes_bfloat16)};
  SharedSnapshot newest;
  {
    MutexLock lock(mu_);
    figures.run_id = attachment_.run_id;
    figures.run_name = attachment_.run_name;
    figures.shard = attachment_.place.index;
    figures.connected = link_ != nullptr;
    figures.generation = attachment_.generation;
    figures.connections = connections_;
    figures.fold_seconds = fold_seconds_;
    figures.service.folds_waiting = running_;
    if (node_.has_value()) newest = node_->Read(node_->newest());
  }
  if (newest == nullptr) return figures;
  figures.version = newest->version.value();
  const auto bytes = [](const SharedFloats& floats) {
    return floats == nullptr
               ? 0
               : floats->size() * static_cast<int64_t>(sizeof(float));
  };
  for (const SharedFloats& weights : newest->weights) {
    if (weights != nullptr) ++figures.partitions;
    figures.weights_bytes += bytes(weights);
  }
  for (const Slots& slots : newest->slots) {
    figures.optimizer_bytes += BytesOf(slots);
  }
  return figures;
}

}  // namespace cohort
