#include "server/core/step/round.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace cohort {

Round::Round(Plan plan)
    : pushes(plan.partitions, plan.trainable), plan_(std::move(plan)) {
  std::vector<Rank> members;
  for (size_t i = 0; i < plan_.candidates.size(); ++i) {
    const Rank rank = plan_.candidates[i];
    if (plan_.cut.ranges[i].empty() && !plan_.cut.without_ranges) continue;
    members.push_back(rank);
    shares_[rank] = {.range = plan_.cut.ranges[i], .candidate = i};
    pushes.Add(rank);
  }
  fixed_ = plan_.pushes_min == 0 ||
           plan_.pushes_min >= static_cast<int32_t>(members.size());
  members_ = members;
  RendezvousTable::Options options = plan_.rendezvous;
  options.fixed = fixed_;
  rendezvous = RendezvousTable(std::move(members), options);
}

std::vector<IndexRange> Round::local_steps(Rank rank) const {
  if (plan_.cut.local_steps.empty()) return {};
  return plan_.cut.local_steps[shares_.at(rank).candidate];
}

bool Round::Issue(Rank rank) {
  any_issued_ = true;
  return !std::exchange(shares_.at(rank).issued, true);
}

bool Round::Claim(Rank rank) {
  if (fixed_ ||
      std::find(claims_.begin(), claims_.end(), rank) != claims_.end()) {
    return false;
  }
  claims_.push_back(rank);
  return true;
}

std::vector<Rank> Round::DropOthers(const std::vector<Rank>& members) {
  std::vector<Rank> others;
  for (Rank rank : members_) {
    if (!std::binary_search(members.begin(), members.end(), rank)) {
      others.push_back(rank);
    }
  }
  members_ = members;
  fixed_ = true;
  return others;
}

void Round::Drop(Rank rank) {
  pushes.Erase(rank);
  dropped_.insert(rank);
}

void Round::Remove(Rank rank) {
  pushes.Erase(rank);
  members_ = members_.Without(rank);
}

void Round::Restart(Rank rank) {
  pushes.Erase(rank);
  pushes.Add(rank);
  rendezvous.NoteReopened(rank);
}

bool Round::UpdateDone() const {
  if (!Continues() || !progress.commit.has_value()) return false;
  if (progress.discards) return pushes.AllHaveGradients();
  return progress.commit->update() == update_ && progress.commit->complete();
}

void Round::NextUpdate() {
  ++update_;
  pushes = pushes.Renewed();
  progress.discards = progress.commit->nonfinite().has_value();
}

Decision Round::Decide() const {
  RoundView view{.fixed = fixed_, .claims = claims_};
  for (const auto& [rank, push] : pushes.all()) {
    view.pushes.push_back({.rank = rank, .complete = pushes.IsComplete(rank)});
  }
  return DecideSync(view, plan_.pushes_min);
}

namespace {

// The largest number of calls of each part and layer.
std::vector<int32_t> MostCalls(const std::map<Rank, ArrivedPush>& pushes) {
  std::vector<int32_t> most;
  for (const auto& [rank, push] : pushes) {
    const std::vector<int32_t>& counts = push.closing().batch_norm_calls;
    most.resize(std::max(most.size(), counts.size()));
    for (size_t at = 0; at < counts.size(); ++at) {
      most[at] = std::max(most[at], counts[at]);
    }
  }
  return most;
}

// Numbers the calls of a rank, which made `own` of them by part and layer, as
// if it had made `most`.
void Renumber(const std::vector<int32_t>& own, const std::vector<int32_t>& most,
              size_t layers, std::vector<CallMoments>& calls) {
  // The part of the call before, and the calls of its layer in the parts before
  // that.
  size_t part = 0;
  int32_t own_before = 0;
  int32_t most_before = 0;
  int32_t layer = -1;
  for (CallMoments& call : calls) {
    if (call.layer != layer) {
      layer = call.layer;
      part = 0;
      own_before = 0;
      most_before = 0;
    }
    const auto at = [&] { return part * layers + static_cast<size_t>(layer); };
    while (call.call >= own_before + own[at()]) {
      own_before += own[at()];
      most_before += most[at()];
      ++part;
    }
    call.call += most_before - own_before;
  }
}

// Local steps without samples update the statistics too, with what others have.
void NoteUpdates(const std::vector<int32_t>& most, size_t layers,
                 std::vector<CallMoments>& calls) {
  for (CallMoments& call : calls) {
    int64_t updates = 0;
    for (auto at = static_cast<size_t>(call.layer); at < most.size();
         at += layers) {
      updates += most[at];
    }
    call.updates = static_cast<int32_t>(
        std::min<int64_t>(updates, std::numeric_limits<int32_t>::max()));
  }
}

}  // namespace

std::vector<BatchDigest> DigestsOf(const Round& round) {
  std::vector<BatchDigest> digests;
  for (const auto& [rank, push] : round.pushes.all()) {
    const uint64_t digest = push.opening().batch_digest;
    if (digest != 0) digests.push_back({.rank = rank, .digest = digest});
  }
  return digests;
}

std::vector<RankMoments> TakeMoments(Round& round, bool global, size_t layers) {
  const std::vector<int32_t> most =
      global ? std::vector<int32_t>() : MostCalls(round.pushes.all());
  std::vector<RankMoments> moments;
  for (const auto& [rank, push] : round.pushes.all()) {
    RankMoments& of =
        moments.emplace_back(RankMoments{.rank = rank,
                                         .samples = push.opening().samples,
                                         .changes = push.closing().changes});
    if (global) continue;
    of.calls = round.pushes.TakeMoments(rank);
    if (round.cut().local_count() > 0) {
      NoteUpdates(most, layers, of.calls);
      continue;
    }
    const std::vector<int32_t>& own = push.closing().batch_norm_calls;
    if (own != most) Renumber(own, most, layers, of.calls);
  }
  return moments;
}

CommitRecord RecordOf(const Round& round) {
  const PendingCommit& commit = *round.progress.commit;
  CommitRecord record{.data_epoch = round.cut().epoch,
                      .learning_rate = commit.learning_rate(),
                      .members = round.members(),
                      .gradient_norm = commit.gradient_norm(),
                      .skipped = round.progress.nonfinite.has_value()};
  int64_t correct = 0;
  std::map<std::string, Measure> measures;
  for (const auto& [rank, push] : round.pushes.all()) {
    record.commit_samples += push.opening().samples;
    record.loss += push.closing().loss_sum;
    record.loss_weight += push.opening().loss_weight;
    correct += push.closing().correct;
    for (const Measure& measure : push.closing().measures) {
      const auto [at, first] = measures.try_emplace(measure.name, measure);
      if (first) continue;
      at->second.sum += measure.sum;
      at->second.weight += measure.weight;
    }
    record.labels += push.closing().labels;
  }
  for (const auto& [name, sum] : measures) record.measures.push_back(sum);
  record.loss = record.loss_weight > 0 ? record.loss / record.loss_weight : 0;
  if (record.labels > 0) {
    record.accuracy =
        static_cast<double>(correct) / static_cast<double>(record.labels);
  }
  return record;
}

CommitObservation TakeObservation(Round& round, Instant now) {
  CommitObservation seen;
  for (const auto& [rank, closed] : round.pushes.closed()) {
    if (!round.pushes.Contains(rank)) continue;
    seen.barrier_waits.push_back(now - closed);
    seen.last_arrival = rank;
  }
  if (round.members().size() < 2) seen.last_arrival.reset();
  const std::optional<Instant>& first_fold = round.progress.first_fold;
  if (first_fold.has_value()) seen.aggregation = now - *first_fold;
  RendezvousTable& rendezvous = round.rendezvous;
  seen.forward = std::move(rendezvous.observed(ReducePhase::kForward));
  seen.backward = std::move(rendezvous.observed(ReducePhase::kBackward));
  return seen;
}

}  // namespace cohort
