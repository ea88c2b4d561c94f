// What the coordinator says about itself, and whom it waits for.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/coordinator.h"

namespace cohort {
namespace {

constexpr absl::Duration kUnbounded = absl::InfiniteDuration();

std::string Ranks(const std::vector<Rank>& ranks) {
  return absl::StrCat(
      ranks.size() == 1 ? "worker " : "workers ",
      absl::StrJoin(ranks, ", ", [](std::string* out, Rank rank) {
        absl::StrAppend(out, rank.value());
      }));
}

// Shorter waits come and go with every step, and are nobody's news.
constexpr absl::Duration kHeldUpMin = absl::Seconds(2);

}  // namespace

absl::string_view PhaseName(StatusView::Phase phase) {
  switch (phase) {
    case StatusView::Phase::kWaiting:
      return "waiting";
    case StatusView::Phase::kTraining:
      return "training";
    case StatusView::Phase::kEvaluating:
      return "evaluating";
    case StatusView::Phase::kCollecting:
      return "collecting";
    case StatusView::Phase::kOver:
      return "over";
  }
  return "";
}

std::vector<Rank> Coordinator::VacantRanks() const {
  std::vector<Rank> vacant;
  for (const Worker& worker : ranks_.all()) {
    if (!worker.usable()) vacant.push_back(worker.rank);
  }
  return vacant;
}

std::vector<Rank> Coordinator::AwaitedToStart() const {
  const bool waits = settings_.waits_for_lost();
  std::vector<Rank> awaited;
  for (const Worker& worker : ranks_.all()) {
    if (worker.usable() || registrations_.Contains(worker.rank)) continue;
    // The run went on without it before it was continued.
    if (never_registered_before_.contains(worker.rank) ||
        (!waits && lost_before_.contains(worker.rank))) {
      continue;
    }
    awaited.push_back(worker.rank);
  }
  return awaited;
}

absl::Duration Coordinator::StartLeft(Instant now) const {
  if (!resumed_ || !begin_.has_value() || settings_.waits_for_lost()) {
    return kUnbounded;
  }
  return std::max(*begin_ + settings_.options().replacement_deadline - now,
                  absl::ZeroDuration());
}

std::string Coordinator::StartText(Instant now) const {
  const std::vector<Rank> waited = WaitedFor();
  if (registrations_.asked().has_value()) {
    const Instant until = ranks_[waited.front()].last_progress +
                          settings_.options().values_deadline;
    return absl::StrCat(
        "waiting for ", Ranks(waited), " to register its model, gives up in ",
        SecondsText(std::max(until - now, absl::ZeroDuration())));
  }
  const absl::Duration left = StartLeft(now);
  std::string limit = "no limit";
  if (left <= absl::ZeroDuration()) {
    limit = "starts with the first that comes";
  } else if (left < kUnbounded) {
    limit = absl::StrCat("starts without ", waited.size() == 1 ? "it" : "them",
                         " in ", SecondsText(left));
  }
  return absl::StrCat("waiting for ", Ranks(waited), " to join and register, ",
                      limit);
}

std::vector<Rank> Coordinator::WaitedFor() const {
  if (!ledger_.started()) {
    if (registrations_.asked().has_value()) return {*registrations_.asked()};
    std::vector<Rank> awaited = AwaitedToStart();
    // Only those are missing that need not come, but one must.
    return awaited.empty() ? VacantRanks() : awaited;
  }
  if (round_.has_value()) {
    const std::vector<Rank> missing = round_->rendezvous.Missing();
    std::vector<Rank> waited =
        missing.empty() || !round_->fixed
            ? settings_.aggregation().Decide(ViewOfRound()).waiting_for
            : missing;
    // They have done what they could.
    std::erase_if(waited, [this](Rank rank) { return IsPaused(rank); });
    return waited;
  }
  return InFlight();
}

absl::Duration Coordinator::WaitLeft(const std::vector<Rank>& ranks,
                                     Instant now) const {
  if (!ledger_.started()) return kUnbounded;
  absl::Duration left = kUnbounded;
  for (Rank rank : ranks) {
    const Worker& worker = ranks_[rank];
    Instant until = worker.last_progress + settings_.options().step_deadline;
    if (worker.state == Worker::State::kVacant) {
      until = worker.missed_since + settings_.options().replacement_deadline;
    } else if (worker.state == Worker::State::kReconnecting) {
      until = worker.lost_at + settings_.options().reconnect_grace +
              settings_.options().replacement_deadline;
    }
    left = std::min(left, until - now);
  }
  return std::max(left, absl::ZeroDuration());
}

std::string Coordinator::LostText(const std::vector<Rank>& lost,
                                  Instant now) const {
  absl::Duration since;
  for (Rank rank : lost) {
    // Of one whose stream has just broken it is not known yet whether it is
    // missed.
    const Worker& worker = ranks_[rank];
    since = std::max(since, now - (worker.state == Worker::State::kReconnecting
                                       ? worker.lost_at
                                       : worker.missed_since));
  }
  return absl::StrCat(
      ledger_.draining() ? "draining after the step in progress; " : "",
      "waiting for a replacement of ", Ranks(lost), ", ", SecondsText(since),
      ", gives up in ", SecondsText(WaitLeft(lost, now)));
}

std::string Coordinator::WaitText(Instant now) const {
  if (!ledger_.started()) return StartText(now);
  const std::vector<Rank> waited = WaitedFor();
  std::vector<Rank> lost;
  for (Rank rank : waited) {
    if (!ranks_[rank].usable()) lost.push_back(rank);
  }
  if (!lost.empty()) return LostText(lost, now);
  if (waited.empty()) return "waiting for the next step";
  return absl::StrCat("waiting for ", Ranks(waited), ", gives up in ",
                      SecondsText(WaitLeft(waited, now)));
}

std::string Coordinator::PausedText(Instant now) const {
  std::vector<Rank> paused = PausedRanks();
  std::erase_if(paused, [this, now](Rank rank) {
    return now - paused_.at(rank).since < kHeldUpMin;
  });
  if (paused.empty()) return "";
  constexpr int64_t kMib = 1 << 20;
  return absl::StrCat("; ", Ranks(paused), " paused: the server holds ",
                      budget_.held_bytes() / kMib, " of ",
                      budget_.limit_bytes() / kMib,
                      " MiB of gradients (--inflight_mib)");
}

absl::string_view Coordinator::ActivityOf(const Worker& worker) const {
  if (worker.state == Worker::State::kVacant) return "vacant";
  if (worker.state == Worker::State::kReconnecting) return "reconnecting";
  if (!worker.registered) return "joining";
  if (ledger_.ended()) return "finished";
  if (!worker.outstanding.has_value()) return "waiting";
  switch (worker.outstanding->kind) {
    case AssignmentKind::kEvaluate:
      return "evaluating";
    case AssignmentKind::kCollectMoments:
      return "collecting";
    default:
      break;
  }
  if (IsPaused(worker.rank)) return "paused";
  const bool waits =
      round_.has_value() && IsMember(worker.rank) &&
      (round_->rendezvous.Waits(worker.rank) ||
       round_->pushes.at(worker.rank).Complete(model_.trainable_partitions()));
  return waits ? "waiting" : "computing";
}

StatusView::Worker Coordinator::ViewOf(const Worker& worker,
                                       Instant now) const {
  StatusView::Worker view{.rank = worker.rank,
                          .state = std::string(StateName(worker.state)),
                          .activity = ActivityOf(worker),
                          .incarnation = worker.incarnation,
                          .description = worker.description,
                          .build = worker.build,
                          .batch_size = worker.batch_size,
                          .sequence = worker.outstanding.has_value()
                                          ? worker.outstanding->sequence
                                          : Sequence(),
                          .silent = now - worker.last_heard,
                          .phases = worker.phases,
                          .pushes = worker.pushes};
  const PushVerdict* decided = ledger_.pushes_of(worker.rank).last_verdict();
  std::optional<Version> at;
  if (decided != nullptr) at = decided->version;
  if (worker.outstanding.has_value()) at = worker.outstanding->version;
  if (model_.registered() && at.has_value()) {
    view.lag_versions = model_.version().value() - at->value();
  }
  if (!settings_.sync() && decided != nullptr) {
    view.staleness_versions = decided->staleness_versions;
  }
  return view;
}

Coordinator::HoldUp Coordinator::HeldUp(Instant now) const {
  const auto waits = [this](const Worker& worker) {
    if (!worker.usable()) return false;
    if (!settings_.sync()) return worker.waiting;
    return IsMember(worker.rank) &&
           (IsPaused(worker.rank) || round_->rendezvous.Waits(worker.rank) ||
            round_->pushes.at(worker.rank)
                .Complete(model_.trainable_partitions()));
  };
  const Worker* longest = nullptr;
  for (const Worker& worker : ranks_.all()) {
    const bool longer =
        longest == nullptr || worker.last_progress < longest->last_progress;
    if (longer && waits(worker)) longest = &worker;
  }
  if (longest == nullptr) return {};
  return {.longest = now - longest->last_progress,
          .by = settings_.sync() ? WaitedFor() : Behind(longest->rank)};
}

void Coordinator::DescribeState(Instant now, StatusView& view) const {
  if (ledger_.ended()) {
    view.phase = StatusView::Phase::kOver;
    view.state = absl::StrCat("over: ", ledger_.end_reason());
    return;
  }
  if (!ledger_.started()) {
    view.phase = StatusView::Phase::kWaiting;
    view.state = WaitText(now);
    view.waited_for = WaitedFor();
    // A new run has no deadline for its first workers.
    if (registrations_.asked().has_value()) {
      view.waiting = now - ranks_[view.waited_for.front()].last_progress;
    } else if (resumed_ && begin_.has_value()) {
      view.waiting = now - *begin_;
    }
    return;
  }
  std::vector<Rank> lost;
  for (const Worker& worker : ranks_.all()) {
    if (worker.ever_registered && !worker.usable()) lost.push_back(worker.rank);
  }
  // Whatever the rule, nothing goes on without any worker.
  const bool alone = ranks_.live() == 0;
  const bool waits = !lost.empty() && (alone || settings_.waits_for_lost());
  if (waits) {
    view.waited_for = lost;
    for (Rank rank : lost) {
      view.waiting = std::max(view.waiting, now - ranks_[rank].missed_since);
    }
  }
  if (waits && (settings_.sync() || alone)) {
    view.phase = StatusView::Phase::kWaiting;
    view.state =
        ledger_.started() && alone ? LostText(lost, now) : WaitText(now);
    return;
  }
  if (pinned_.collecting()) {
    view.phase = StatusView::Phase::kCollecting;
    view.state = pinned_.CollectingText();
    return;
  }
  view.phase = TrainingDone() ? StatusView::Phase::kEvaluating
                              : StatusView::Phase::kTraining;
  const HoldUp held_up = HeldUp(now);
  // Not if the server itself is at work.
  if (held_up.longest >= kHeldUpMin && !held_up.by.empty()) {
    view.waited_for = held_up.by;
    view.waiting = held_up.longest;
    view.phase = StatusView::Phase::kWaiting;
    view.state =
        absl::StrCat("waiting for ", Ranks(held_up.by), ", ",
                     SecondsText(held_up.longest), ", gives up in ",
                     SecondsText(WaitLeft(held_up.by, now)), PausedText(now));
    return;
  }
  view.state = absl::StrCat("training, ", ranks_.live(), " of ", ranks_.size(),
                            " workers");
  absl::StrAppend(&view.state, PausedText(now));
  // The others go on meanwhile.
  if (waits) absl::StrAppend(&view.state, "; ", LostText(lost, now));
}

StatusView Coordinator::Status(Instant now) const {
  StatusView view{.run_id = settings_.options().run_id,
                  .run_name = settings_.options().run_name,
                  .data_epoch = ledger_.cursor().epoch(),
                  .epochs = settings_.options().epochs,
                  .samples = ledger_.samples(),
                  .samples_total = samples_total(),
                  .policy = PolicyText(settings_.policy()),
                  .learning_rate = learning_rate(),
                  .train_loss = ledger_.train_loss,
                  .workers_live = ranks_.live(),
                  .workers_expected = ranks_.size(),
                  .counts = ledger_.counts,
                  .vacancies = ledger_.vacancies,
                  .statistics = ledger_.statistics_counts,
                  .staleness = ledger_.staleness,
                  .ended = ledger_.ended()};
  if (model_.registered()) view.version = model_.version();
  if (round_.has_value()) view.attempt = round_->attempt;
  if (pinned_.last_evaluation().has_value()) {
    view.test = pinned_.last_evaluation()->sums();
  }
  for (const Worker& worker : ranks_.all()) {
    view.workers.push_back(ViewOf(worker, now));
  }
  DescribeState(now, view);
  return view;
}

}  // namespace cohort
