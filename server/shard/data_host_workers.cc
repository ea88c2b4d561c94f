// The streams of a data shard: gradients of workers in, versions out.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "server/shard/data_host.h"

namespace cohort {
namespace {

// A version that may come is committed already, or shard 0 is gone.
constexpr absl::Duration kReadPatience = absl::Seconds(30);

}  // namespace

absl::Status DataHost::AdmitSpeaking(StreamRegistry& to,
                                     const std::shared_ptr<Stream>& stream) {
  StreamRegistry::Streams evicted;
  const absl::Status admitted =
      to.Admit(stream, clock_.Now() + kFirstMessageDeadline, &evicted);
  EndEvicted(evicted);
  return admitted;
}

void DataHost::CheckStreams() {
  const Instant now = clock_.Now();
  for (StreamRegistry* registry : {&streams_, &links_}) {
    for (const std::shared_ptr<Stream>& stream : registry->TakeSilent(now)) {
      stream->Cut(absl::DeadlineExceededError(
          "no first message came in time; send it when the call begins"));
    }
    for (const std::shared_ptr<Stream>& stream : registry->All()) {
      stream->CheckReader(now);
    }
  }
  for (const auto& pull : pulls_.Tick(now)) pull->SendPartition();
  EndOverdueReads();
  std::shared_ptr<CoordinatorStream> link;
  {
    // With the lock, so that a process whose lock is held for ever is silent.
    MutexLock lock(mu_);
    link = link_;
  }
  if (link != nullptr) link->SendAlive();
}

void DataHost::EndOverdueReads() {
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

absl::StatusOr<Admission> DataHost::Gradient(
    const Sender& sender, const PushKey& key, ReceivedGradient gradient,
    const std::shared_ptr<ExchangeStream>& from) {
  const int64_t bytes = gradient.bytes.size_bytes();
  gradient.bytes = gradient_bytes_.Count(std::move(gradient.bytes));
  const ElementType type = gradient.about.type;
  RemoteGradient told{.sender = sender, .key = key, .gradient = gradient.about};
  told.gradient.bytes = bytes;
  std::shared_ptr<CoordinatorStream> link;
  Admission admission = Admission::kTaken;
  {
    MutexLock lock(mu_);
    if (link_ == nullptr) return NotConnected();
    COHORT_RETURN_IF_ERROR(CheckRunId(sender.run_id, attachment_.run_id));
    link = link_;
    told.gradient.ticket = next_ticket_++;
    staged_.emplace(told.gradient.ticket,
                    Staged{.gradient = {.partition = gradient.about.partition,
                                        .gradient = std::move(gradient.bytes),
                                        .type = type,
                                        .absent_slices = std::move(
                                            gradient.about.absent_slices)},
                           .from = from});
    Window& window = windows_[from.get()];
    if (++window.staged >= options_.staged_max) {
      window.paused = true;
      admission = Admission::kPaused;
    }
  }
  link->SendGradient(told);
  ServiceCounters::Add(type == ElementType::kBFloat16
                           ? counters_.push_bytes_bfloat16
                           : counters_.push_bytes_float32,
                       bytes);
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
    actions.calls.push_back([from = staged.from] { from->Resume(); });
  }
  if (window.staged == 0) windows_.erase(at);
  return staged;
}

absl::Status DataHost::ServesLocked(const ReaderBelief& belief) const {
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
                     ": all shards have started again; ask shard 0 anew"));
  }
  return absl::OkStatus();
}

absl::Status DataHost::Serves(const ReaderBelief& belief) const {
  MutexLock lock(mu_);
  return ServesLocked(belief);
}

void DataHost::Read(const ReaderBelief& belief, Version version, OnRead done) {
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

SharedSnapshot DataHost::Held(Version version) const {
  MutexLock lock(mu_);
  return node_.has_value() ? node_->Read(version) : nullptr;
}

void DataHost::FitStreams(int32_t workers) {
  streams_.SetLimits(StreamRegistry::LimitsOf(workers));
  pulls_.SetLimits(PullTable::LimitsOf(workers));
}

void DataHost::AnswerReadsLocked(Actions& actions) {
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

}  // namespace cohort
