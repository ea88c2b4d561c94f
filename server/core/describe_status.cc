#include "server/core/describe_status.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "server/core/ledger/run_progress.h"
#include "server/core/lost_ranks.h"
#include "server/core/statistics/call_names.h"
#include "server/core/step/push_outcome.h"

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

// Shorter waits are part of every step, and not worth reporting.
constexpr absl::Duration kBlockedMin = absl::Seconds(2);

std::vector<Rank> AwaitedToStart(const Run& run) {
  return run.roster.AwaitedToStart(
      [&run](Rank rank) { return run.registrar.Contains(rank); });
}

}  // namespace

absl::string_view PhaseName(StatusView::Phase phase) {
  constexpr absl::string_view kNames[] = {"waiting", "training", "evaluating",
                                          "collecting", "over"};
  return kNames[static_cast<size_t>(phase)];
}

std::vector<Rank> WaitedFor(const Run& run) {
  if (!run.phase.started()) {
    if (run.registrar.asked().has_value()) return {*run.registrar.asked()};
    std::vector<Rank> awaited = AwaitedToStart(run);
    if (!awaited.empty()) return awaited;
    // Only those are missing that need not come, but one must.
    return run.ranks.Where(
        [](const Worker& worker) { return !worker.usable(); });
  }
  if (run.pinned.HoldsTraining()) return run.ranks.InFlight();
  return run.driver->WaitedFor();
}

absl::Duration WaitLeft(const Run& run, const std::vector<Rank>& ranks,
                        Instant now) {
  if (!run.phase.started()) return kUnbounded;
  const CoordinatorOptions& options = run.settings.options();
  absl::Duration left = kUnbounded;
  for (Rank rank : ranks) {
    const Worker& worker = run.ranks[rank];
    Instant until = worker.work.last_progress() + DeadlineOf(worker, options);
    if (worker.state == Worker::State::kVacant) {
      until = worker.missed_since + options.replacement_deadline;
    } else if (worker.state == Worker::State::kReconnecting) {
      until = worker.lost_at + options.reconnect_grace +
              options.replacement_deadline;
    }
    left = std::min(left, until - now);
  }
  return std::max(left, absl::ZeroDuration());
}

namespace {

// "2 more workers", of an elastic cohort.
std::string MoreWorkers(int64_t count) {
  return absl::StrCat(count, count == 1 ? " more worker" : " more workers");
}

// An elastic cohort has too few workers to continue.
bool TooFew(const Run& run) {
  return run.phase.started() && !run.phase.ended() &&
         !run.driver->TrainingDone() &&
         run.ranks.present() < run.settings.workers_min();
}

std::string TooFewText(const Run& run, Instant now) {
  const int32_t here = run.ranks.present();
  const int32_t wanted = run.settings.workers_min();
  const Instant until = run.roster.too_few_since().value_or(now) +
                        run.settings.options().replacement_deadline;
  return absl::StrCat("waiting for ", MoreWorkers(wanted - here), ": ", here,
                      " here, want at least ", wanted, ", gives up in ",
                      SecondsText(std::max(until - now, absl::ZeroDuration())));
}

std::string StartText(const Run& run, Instant now) {
  const std::vector<Rank> waited = WaitedFor(run);
  if (run.registrar.asked().has_value()) {
    const Instant until = run.ranks[waited.front()].work.last_progress() +
                          run.settings.options().values_deadline;
    return absl::StrCat(
        "waiting for ", Ranks(waited), " to register its model, gives up in ",
        SecondsText(std::max(until - now, absl::ZeroDuration())));
  }
  if (run.settings.elastic()) {
    return absl::StrCat("waiting for ",
                        MoreWorkers(static_cast<int64_t>(waited.size())),
                        " to join and register (--workers=",
                        WorkersText(run.settings.options()), ")");
  }
  // With several shards, no rank begins before that.
  if (waited.empty()) return "waiting for the first checkpoint to be on disk";
  const absl::Duration left = run.roster.StartLeft(now);
  std::string limit = "no time limit";
  if (left <= absl::ZeroDuration()) {
    limit = "starts with the first worker that joins";
  } else if (left < kUnbounded) {
    limit = absl::StrCat("starts without ", waited.size() == 1 ? "it" : "them",
                         " in ", SecondsText(left));
  }
  const bool all_here =
      std::all_of(waited.begin(), waited.end(), [&run](Rank rank) {
        return run.ranks[rank].state == Worker::State::kLive;
      });
  return absl::StrCat(
      "waiting for ", Ranks(waited), all_here ? " to" : " to join and",
      " register, ", limit,
      all_here ? "; if that takes long, look at the worker's log" : "");
}

std::string LostText(const Run& run, const std::vector<Rank>& lost,
                     Instant now) {
  absl::Duration since;
  for (Rank rank : lost) {
    // A stream that has just broken may come back: the rank is not missed yet.
    const Worker& worker = run.ranks[rank];
    since = std::max(since, now - (worker.state == Worker::State::kReconnecting
                                       ? worker.lost_at
                                       : worker.missed_since));
  }
  return absl::StrCat(
      run.phase.draining() ? "draining after the step in progress; " : "",
      "waiting for a replacement of ", Ranks(lost), ", ", SecondsText(since),
      ", gives up in ", SecondsText(WaitLeft(run, lost, now)));
}

}  // namespace

std::string WaitText(const Run& run, Instant now) {
  if (!run.phase.started()) return StartText(run, now);
  if (TooFew(run)) return TooFewText(run, now);
  const std::vector<Rank> waited = WaitedFor(run);
  std::vector<Rank> lost;
  for (Rank rank : waited) {
    if (!run.ranks[rank].usable()) lost.push_back(rank);
  }
  if (!lost.empty()) return LostText(run, lost, now);
  if (waited.empty()) return "waiting for the next step";
  return absl::StrCat("waiting for ", Ranks(waited), ", gives up in ",
                      SecondsText(WaitLeft(run, waited, now)));
}

namespace {

std::string PausedText(const Run& run, Instant now) {
  std::vector<Rank> paused = run.flow.PausedRanks();
  std::erase_if(paused, [&](Rank rank) {
    return !run.flow.IsPausedSince(rank, now - kBlockedMin);
  });
  if (paused.empty()) return "";
  constexpr int64_t kMib = 1 << 20;
  return absl::StrCat("; ", Ranks(paused), " paused: the server holds ",
                      run.flow.budget().inflight_bytes() / kMib, " of ",
                      run.flow.budget().limit_bytes() / kMib,
                      " MiB of gradients (--inflight_mib)");
}

// "; rank 1 waits in call 0 of bn1", of those that have waited for a second.
std::string RendezvousText(const Run& run, Instant now) {
  constexpr absl::Duration kWaitMin = absl::Seconds(1);
  constexpr int kNamedMax = 4;
  std::string text;
  int named = 0;
  int others = 0;
  for (const Worker& worker : run.ranks.all()) {
    if (!worker.usable() || now - worker.work.last_progress() < kWaitMin)
      continue;
    const CallPlace* const call = run.driver->StandingOf(worker).waits_in;
    if (call == nullptr) continue;
    if (named == kNamedMax) {
      ++others;
      continue;
    }
    ++named;
    absl::StrAppend(&text, "; rank ", worker.rank.value(), " waits in ",
                    CallTextOf(*call, run.model.batch_norms()));
  }
  if (others > 0) absl::StrAppend(&text, "; ", others, " more ranks wait");
  return text;
}

// The run has ended, and the worker took part until then.
bool IsFinished(const Run& run, const Worker& worker) {
  return run.phase.ended() && (worker.registered || worker.finished);
}

absl::string_view ActivityOf(const Run& run, const Worker& worker,
                             const Standing& standing) {
  if (IsFinished(run, worker)) return "finished";
  if (worker.state == Worker::State::kVacant) return "vacant";
  if (worker.state == Worker::State::kReconnecting) return "reconnecting";
  if (!worker.registered) return "joining";
  if (!worker.work.busy()) return "waiting";
  const AssignmentKind kind = worker.work.outstanding()->kind;
  if (kind == AssignmentKind::kEvaluate) return "evaluating";
  if (kind == AssignmentKind::kCollectMoments) return "collecting";
  if (run.flow.IsPaused(worker.rank)) return "paused";
  return standing.waits_for_others ? "waiting" : "computing";
}

StatusView::Worker ViewOf(const Run& run, const Worker& worker, Instant now) {
  const Standing standing = run.driver->StandingOf(worker);
  StatusView::Worker view{
      .rank = worker.rank,
      .state = IsFinished(run, worker) ? "finished"
                                       : std::string(StateName(worker.state)),
      .activity = ActivityOf(run, worker, standing),
      .waits_in = standing.waits_in == nullptr
                      ? ""
                      : CallTextOf(*standing.waits_in, run.model.batch_norms()),
      .incarnation = worker.incarnation,
      .description = worker.description,
      .build = worker.build,
      .batch_size = worker.batch_size,
      .sequence =
          worker.work.busy() ? worker.work.outstanding()->sequence : Sequence(),
      .silent = now - worker.last_heard,
      .report = worker.report,
      .pushes = worker.pushes};
  const PushVerdict* decided = run.ledger.pushes_of(worker.rank).last_verdict();
  std::optional<Version> at;
  if (decided != nullptr) at = decided->version;
  if (worker.work.busy()) at = worker.work.outstanding()->version;
  if (run.model.registered() && at.has_value()) {
    view.lag_versions = run.model.version().value() - at->value();
  }
  if (!run.settings.sync() && decided != nullptr) {
    view.staleness_versions = decided->staleness_versions;
  }
  return view;
}

struct Blockage {
  // How long the one has been idle that has waited longest.
  absl::Duration longest;
  std::vector<Rank> by;
};

Blockage FindBlockage(const Run& run, Instant now) {
  const Worker* longest = nullptr;
  for (const Worker& worker : run.ranks.all()) {
    const bool longer = longest == nullptr || worker.work.last_progress() <
                                                  longest->work.last_progress();
    if (longer && worker.usable() &&
        run.driver->StandingOf(worker).is_blocked) {
      longest = &worker;
    }
  }
  if (longest == nullptr) return {};
  return {.longest = now - longest->work.last_progress(),
          .by = run.driver->BlockedBy(*longest)};
}

void DescribeStart(const Run& run, Instant now, StatusView& view) {
  view.phase = StatusView::Phase::kWaiting;
  view.state = WaitText(run, now);
  view.waited_for = WaitedFor(run);
  // A new run has no deadline for its first workers.
  if (run.registrar.asked().has_value()) {
    view.waiting =
        now - run.ranks[view.waited_for.front()].work.last_progress();
  } else if (run.roster.resumed() && run.roster.begin().has_value()) {
    view.waiting = now - *run.roster.begin();
  }
}

void DescribeState(const Run& run, Instant now, StatusView& view) {
  if (run.phase.ended()) {
    view.phase = StatusView::Phase::kOver;
    view.state = absl::StrCat("over: ", run.phase.end_reason());
    return;
  }
  if (!run.phase.started()) return DescribeStart(run, now, view);
  if (TooFew(run)) {
    view.phase = StatusView::Phase::kWaiting;
    view.state = TooFewText(run, now);
    view.waiting = now - run.roster.too_few_since().value_or(now);
    return;
  }
  // Under every rule, the run stops without any worker.
  const bool alone = run.ranks.live() == 0;
  const std::vector<Rank> lost = run.ranks.Where([alone](const Worker& worker) {
    return !worker.usable() &&
           (worker.keeps_share() || (alone && worker.ever_registered));
  });
  const bool waits = !lost.empty() && (alone || run.settings.waits_for_lost());
  if (waits) {
    view.waited_for = lost;
    for (Rank rank : lost) {
      view.waiting = std::max(view.waiting, now - run.ranks[rank].missed_since);
    }
  }
  if (waits && (run.settings.sync() || alone)) {
    view.phase = StatusView::Phase::kWaiting;
    view.state = run.phase.started() && alone ? LostText(run, lost, now)
                                              : WaitText(run, now);
    return;
  }
  if (run.pinned.collecting()) {
    view.phase = StatusView::Phase::kCollecting;
    view.state = run.pinned.CollectingText();
    return;
  }
  view.phase = run.driver->TrainingDone() || run.pinned.HoldsTraining()
                   ? StatusView::Phase::kEvaluating
                   : StatusView::Phase::kTraining;
  const Blockage blockage = FindBlockage(run, now);
  // While the server itself is at work, no worker is to blame.
  if (blockage.longest >= kBlockedMin && !blockage.by.empty()) {
    view.waited_for = blockage.by;
    view.waiting = blockage.longest;
    view.phase = StatusView::Phase::kWaiting;
    view.state = absl::StrCat("waiting for ", Ranks(blockage.by), ", ",
                              SecondsText(blockage.longest), ", gives up in ",
                              SecondsText(WaitLeft(run, blockage.by, now)),
                              PausedText(run, now), RendezvousText(run, now));
    return;
  }
  view.state = absl::StrCat(PhaseName(view.phase), ", ", run.ranks.live());
  if (run.settings.elastic()) {
    absl::StrAppend(&view.state,
                    run.ranks.live() == 1 ? " worker (" : " workers (",
                    WorkersText(run.settings.options()), ")");
  } else {
    absl::StrAppend(&view.state, " of ", run.ranks.size(), " workers");
  }
  absl::StrAppend(&view.state, PausedText(run, now), RendezvousText(run, now));
  // The others continue.
  if (waits) absl::StrAppend(&view.state, "; ", LostText(run, lost, now));
}

}  // namespace

StatusView DescribeStatus(const Run& run, Instant now) {
  StatusView view{
      .run_id = run.settings.options().run_id,
      .run_name = run.settings.options().run_name,
      .data_epoch = run.ledger.cursor.epoch(),
      .epochs = run.settings.options().epochs,
      .samples = run.ledger.samples,
      .local_steps = run.ledger.local_steps,
      .samples_total = PlannedSamples(run.settings, run.ledger, run.model),
      .learning_rate = LearningRateNow(run.settings, run.ledger, run.model),
      .train_loss = run.ledger.train_loss,
      .measures = run.ledger.measures,
      .data_problem = run.ledger.data_problem,
      .workers_live = run.ranks.live(),
      .workers_expected = run.ranks.size(),
      .workers_min = run.settings.workers_min(),
      .step_samples = SamplesReference(run) *
                      std::max(1, run.settings.policy().local_steps),
      .counts = run.ledger.counts,
      .vacancies = run.ledger.vacancies,
      .statistics = run.ledger.statistics_counts,
      .staleness = run.ledger.staleness,
      .ended = run.phase.ended()};
  if (run.model.registered()) {
    view.version = run.model.version();
    if (run.model.model()->plan.own_data) view.epochs = 0;
  }
  view.attempt = run.driver->attempt().value_or(Attempt());
  if (run.pinned.last_evaluation().has_value()) {
    view.test = run.pinned.last_evaluation()->sums();
  }
  for (const Worker& worker : run.ranks.all()) {
    view.workers.push_back(ViewOf(run, worker, now));
  }
  DescribeState(run, now, view);
  return view;
}

PolicyView DescribePolicy(const Run& run, Instant now) {
  PolicyView view{.policy_epoch = run.settings.policy_epoch(),
                  .text = PolicyText(run.settings.policy()),
                  .settings = SettingsOf(run.settings.options()),
                  .history = run.settings.history()};
  if (run.settings.pending().has_value()) {
    view.pending = run.settings.pending_changes();
    view.pending_reason = WaitText(run, now);
  }
  if (run.phase.ended()) {
    view.over = absl::StrCat("the run has ended: ", run.phase.end_reason());
  }
  return view;
}

absl::StatusOr<std::optional<PolicyRecord>> OutcomeOf(
    const PolicyView& policy, const AwaitedChange& change) {
  // Errors: Aborted: `others` does not have the same values.
  const auto check = [&](const SettingValues& others, absl::string_view is) {
    // Those that are not in it stay as they are.
    SettingValues all = others;
    all.insert(policy.settings.begin(), policy.settings.end());
    for (const auto& [name, value] : change.values) {
      if (others.contains(name) && all[name] == value) continue;
      return absl::AbortedError(absl::StrCat(
          "the change was replaced by another one before it took effect: ",
          name, " ", is, " ", all[name], ", not ", value));
    }
    return absl::OkStatus();
  };
  for (const PolicyRecord& record : policy.history) {
    if (record.policy_epoch < change.policy_epoch) continue;
    for (const auto& [name, value] : change.values) {
      if (!record.changed.contains(name)) continue;
      COHORT_RETURN_IF_ERROR(check(record.changed, "is"));
      return record;
    }
  }
  if (!policy.over.empty()) {
    return absl::AbortedError(
        absl::StrCat("the change did not take effect: ", policy.over));
  }
  COHORT_RETURN_IF_ERROR(check(policy.pending, "is to be"));
  return std::nullopt;
}

}  // namespace cohort
