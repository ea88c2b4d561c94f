#include "server/core/statistics/rendezvous.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/byte_rope.h"
#include "common/check.h"
#include "kernels/moments_fold.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {
namespace {

uint64_t ChecksumOf(const Moments& moments) {
  const auto of = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return Xxh3(absl::MakeConstSpan(bytes.data(), bytes.size()));
  };
  return of(std::array<uint64_t, 3>{static_cast<uint64_t>(moments.count),
                                    of(moments.first), of(moments.second)});
}

void AddTo(Moments& total, ReducePhase phase, const Moments& part) {
  if (total.first.empty()) {
    total.first.resize(part.first.size());
    total.second.resize(part.second.size());
  }
  if (phase == ReducePhase::kForward) {
    kernels::AddForward(part, total);
  } else {
    kernels::AddBackward(part, total);
  }
}

}  // namespace

MomentsFold RunMomentsFold(MomentsFold job) {
  for (const Moments& part : job.parts) {
    AddTo(job.total, job.key.place.phase, part);
  }
  return job;
}

RendezvousTable::RendezvousTable(std::vector<Rank> ranks,
                                 const Options& options)
    : members_(std::move(ranks), options.group_size),
      calls_(members_.ranks()),
      options_(options),
      states_(members_.ranks().size()),
      late_(members_.count()) {}

void RendezvousTable::SetWaiting(Entry& entry, size_t position, bool waiting) {
  Contribution& slot = entry.contributions[position];
  if (std::exchange(slot.waiting, waiting) == waiting) return;
  const int32_t change = waiting ? 1 : -1;
  entry.meetings[members_.GroupAt(position)].waiting += change;
  members_.AddWaits(position, change);
  if (waiting) states_[position].last = &entry;
}

void RendezvousTable::NoteClosed(Rank rank) {
  const size_t at = members_.PositionOf(rank);
  calls_.NoteClosed(at);
  members_.SetClosed(at, true);
}

void RendezvousTable::SetAtRest(Rank rank, bool rests) {
  members_.SetClosed(members_.PositionOf(rank), rests);
}

void RendezvousTable::Forget(Rank rank) {
  const size_t at = members_.PositionOf(rank);
  for (auto& [place, entry] : entries_) SetWaiting(entry, at, false);
  calls_.NoteLost(at);
}

// ---- contributions

const RendezvousTable::Entry* RendezvousTable::FindForward(
    const CallPlace& place) const {
  const auto at = entries_.find(ForwardOf(place));
  return at == entries_.end() ? nullptr : &at->second;
}

RendezvousTable::Entry& RendezvousTable::EntryOf(const ReduceKey& key) {
  Entry& entry = entries_[key.place];
  if (!entry.contributions.empty()) return entry;
  entry.key = key;
  if (!IsForward(key.place)) entry.forward = FindForward(key.place);
  entry.contributions.resize(members_.ranks().size());
  entry.meetings.resize(members_.count());
  return entry;
}

bool RendezvousTable::KnowsMembers(const Entry& entry, size_t group) {
  if (IsForward(entry.key.place)) return true;
  return entry.forward != nullptr &&
         entry.forward->meetings[group].result != nullptr;
}

bool RendezvousTable::IsIn(const Entry& entry, size_t position) const {
  const Entry& forward = IsForward(entry.key.place) ? entry : *entry.forward;
  return !forward.meetings[members_.GroupAt(position)].partial ||
         forward.contributions[position].present;
}

RendezvousTable::Outcome RendezvousTable::Contribute(
    const ReduceKey& key, Rank rank, Moments moments, Instant now,
    const std::vector<int64_t>& extents) {
  Entry& entry = EntryOf(key);
  const size_t at = members_.PositionOf(rank);
  const size_t group = members_.GroupAt(at);
  Contribution& slot = entry.contributions[at];
  const MemberCalls::News news = calls_.Note(key.place, at, extents);
  Outcome outcome{.fresh = news != MemberCalls::News::kOld,
                  .repeated = news != MemberCalls::News::kFirst};
  const uint64_t checksum = ChecksumOf(moments);
  if (outcome.repeated) {
    outcome.mismatch = slot.checksum != checksum;
    NoteRepeated(entry, at, now, outcome);
    return outcome;
  }
  slot.checksum = checksum;
  if (KnowsMembers(entry, group) && !IsIn(entry, at)) {
    NoteLate(entry, at, now);
    return outcome;
  }
  slot.present = true;
  slot.since = now;
  states_[at].bytes += static_cast<int64_t>(
      (moments.first.size() + moments.second.size()) * sizeof(double));
  entry.channels = moments.first.size();
  slot.moments = std::move(moments);
  SetWaiting(entry, at, true);
  ++entry.meetings[group].present;
  if (options_.fixed) Extend(entry, group, now, outcome);
  return outcome;
}

void RendezvousTable::NoteRepeated(Entry& entry, size_t position, Instant now,
                                   Outcome& outcome) {
  Contribution& slot = entry.contributions[position];
  // A late contribution has no answer.
  if (slot.present) {
    outcome.result = entry.meetings[members_.GroupAt(position)].result;
  }
  SetWaiting(entry, position, outcome.result == nullptr);
  if (outcome.result == nullptr) {
    slot.since = now;
  } else {
    outcome.answer.push_back(members_.ranks()[position]);
  }
}

void RendezvousTable::NoteLate(Entry& entry, size_t position, Instant now) {
  entry.contributions[position].since = now;
  SetWaiting(entry, position, true);
  const Rank rank = members_.ranks()[position];
  std::optional<Late>& late = late_[members_.GroupAt(position)];
  // Whichever comes first in time, the same one is named.
  if (late.has_value() && late->rank <= rank) return;
  late = {.rank = rank, .place = entry.key.place};
}

size_t RendezvousTable::NextIn(const Entry& entry, size_t at,
                               size_t end) const {
  while (at < end && !IsIn(entry, at)) ++at;
  return at;
}

void RendezvousTable::Retain(Entry& entry, size_t position,
                             Moments folded) const {
  const bool kept = IsForward(entry.key.place) &&
                    IsRegistered(entry.key.place) &&
                    (options_.keep == Keep::kAll ||
                     (options_.keep == Keep::kFirst && position == 0));
  if (!kept) return;
  entry.kept.resize(members_.ranks().size());
  entry.kept[position] = std::move(folded);
}

void RendezvousTable::StartJob(Entry& entry, size_t group, size_t ready,
                               Outcome& outcome) {
  Fold& fold = entry.meetings[group].fold;
  fold.running = ready;
  members_.BeginFold(group);
  MomentsFold& job = outcome.fold.emplace(MomentsFold{
      .key = entry.key, .group = group, .total = std::move(fold.total)});
  job.parts.reserve(ready);
  for (size_t i = fold.end; job.parts.size() < ready; ++i) {
    if (!IsIn(entry, i)) continue;
    job.parts.push_back(
        *std::exchange(entry.contributions[i].moments, std::nullopt));
  }
}

void RendezvousTable::Extend(Entry& entry, size_t group, Instant now,
                             Outcome& outcome) {
  Meeting& meeting = entry.meetings[group];
  Fold& fold = meeting.fold;
  if (fold.running > 0 || meeting.result != nullptr ||
      !KnowsMembers(entry, group)) {
    return;
  }
  const MemberGroups::Range range = members_.RangeOf(group);
  fold.end = NextIn(entry, std::max(fold.end, range.begin), range.end);
  size_t ready = 0;
  for (size_t i = fold.end; i < range.end && entry.contributions[i].present;
       i = NextIn(entry, i + 1, range.end)) {
    ++ready;
  }
  // One alone costs no more than it took to receive it.
  if (ready > 1 &&
      static_cast<int64_t>(ready * entry.channels) > options_.inline_max) {
    StartJob(entry, group, ready, outcome);
    return;
  }
  for (; ready > 0; --ready) {
    Moments next =
        *std::exchange(entry.contributions[fold.end].moments, std::nullopt);
    AddTo(fold.total, entry.key.place.phase, next);
    Retain(entry, fold.end, std::move(next));
    fold.end = NextIn(entry, fold.end + 1, range.end);
  }
  if (fold.end == range.end) Complete(entry, group, now, outcome);
}

RendezvousTable::Outcome RendezvousTable::Folded(MomentsFold done,
                                                 Instant now) {
  Outcome outcome;
  const auto at = entries_.find(done.key.place);
  if (at == entries_.end()) return outcome;
  Entry& entry = at->second;
  const bool ours =
      entry.key.step == done.key.step &&
      entry.key.attempt == done.key.attempt &&
      done.group < entry.meetings.size() &&
      entry.meetings[done.group].fold.running == done.parts.size();
  if (!ours) return outcome;
  Fold& fold = entry.meetings[done.group].fold;
  const size_t end = members_.RangeOf(done.group).end;
  fold.total = std::move(done.total);
  for (Moments& part : done.parts) {
    Retain(entry, fold.end, std::move(part));
    fold.end = NextIn(entry, fold.end + 1, end);
  }
  fold.running = 0;
  // More may have come during the fold.
  Extend(entry, done.group, now, outcome);
  members_.EndFold(done.group);
  return outcome;
}

void RendezvousTable::Observe(const Entry& entry, MemberGroups::Range range,
                              Instant now) {
  RendezvousWaits& seen = observed(entry.key.place.phase);
  std::optional<size_t> last;
  Instant last_since;
  size_t met = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    const Contribution& slot = entry.contributions[i];
    if (!slot.present) continue;
    ++met;
    // An incarnation that was lost has waited for nothing.
    if (slot.waiting) seen.waits.push_back(now - slot.since);
    if (last.has_value() && slot.since < last_since) continue;
    last = i;
    last_since = slot.since;
  }
  // A member that meets no other one waits for none.
  if (met > 1) seen.last.push_back(members_.ranks()[*last]);
}

void RendezvousTable::Complete(Entry& entry, size_t group, Instant now,
                               Outcome& outcome) {
  const MemberGroups::Range range = members_.RangeOf(group);
  Meeting& meeting = entry.meetings[group];
  Observe(entry, range, now);
  meeting.result =
      std::make_shared<const Moments>(std::move(meeting.fold.total));
  outcome.result = meeting.result;
  outcome.nonfinite = !IsUsable(entry.key.place.phase, *outcome.result);
  for (size_t i = range.begin; i < range.end; ++i) {
    const Contribution& slot = entry.contributions[i];
    if (!slot.present) continue;
    if (slot.waiting) outcome.answer.push_back(members_.ranks()[i]);
    SetWaiting(entry, i, false);
  }
}

std::vector<RendezvousTable::Completed> RendezvousTable::DropOthers(
    const std::vector<Rank>& members, Instant now) {
  options_.fixed = true;
  const std::vector<size_t> positions = members_.Keep(members);
  calls_.Keep(positions);
  KeepAt(positions, states_);
  late_.assign(members_.count(), std::nullopt);
  for (auto& [place, entry] : entries_) {
    KeepAt(positions, entry.contributions);
    entry.meetings.assign(members_.count(), {});
    for (size_t i = 0; i < positions.size(); ++i) {
      Meeting& meeting = entry.meetings[members_.GroupAt(i)];
      meeting.present += entry.contributions[i].present;
      meeting.waiting += entry.contributions[i].waiting;
    }
  }
  // Only ranks that are no members were there.
  std::erase_if(entries_, [](const auto& at) {
    const std::vector<Meeting>& meetings = at.second.meetings;
    return std::all_of(
        meetings.begin(), meetings.end(),
        [](const Meeting& meeting) { return meeting.present == 0; });
  });
  std::vector<Completed> completed;
  for (auto& [place, entry] : entries_) {
    if (!IsForward(place)) entry.forward = FindForward(place);
    for (size_t group = 0; group < members_.count(); ++group) {
      if (entry.meetings[group].present == 0) continue;
      Outcome outcome;
      Extend(entry, group, now, outcome);
      if (outcome.result == nullptr && !outcome.fold.has_value()) continue;
      completed.push_back({.key = entry.key, .outcome = std::move(outcome)});
    }
  }
  return completed;
}

// ---- members that do not come

std::vector<CallPlace> RendezvousTable::OpenForward(size_t group) const {
  std::vector<CallPlace> places;
  for (const auto& [place, entry] : entries_) {
    const Meeting& meeting = entry.meetings[group];
    if (IsForward(place) && IsRegistered(place) && meeting.waiting > 0 &&
        meeting.result == nullptr) {
      places.push_back(place);
    }
  }
  return places;
}

RendezvousTable::Outcome RendezvousTable::CompleteWith(const CallPlace& place,
                                                       size_t group,
                                                       Instant now) {
  Entry& entry = entries_.at(place);
  COHORT_CHECK(members_.IsAtRest(group) && IsForward(place) &&
                   entry.meetings[group].result == nullptr,
               "members of the rendezvous may still come");
  entry.meetings[group].partial = true;
  Outcome outcome;
  Extend(entry, group, now, outcome);
  return outcome;
}

std::optional<RendezvousTable::Late> RendezvousTable::FirstLate() const {
  for (const std::optional<Late>& late : late_) {
    if (late.has_value()) return late;
  }
  return std::nullopt;
}

// ---- waits

std::vector<CallPlace> RendezvousTable::WaitsOf(Rank rank) const {
  const size_t at = members_.PositionOf(rank);
  std::vector<CallPlace> places;
  for (const auto& [place, entry] : entries_) {
    if (entry.contributions[at].waiting) places.push_back(place);
  }
  return places;
}

const CallPlace* RendezvousTable::WaitOf(Rank rank) const {
  const size_t at = members_.PositionOf(rank);
  if (members_.waits(at) == 0) return nullptr;
  const Entry& last = *states_[at].last;
  if (last.contributions[at].waiting) return &last.key.place;
  for (const auto& [place, entry] : entries_) {
    if (entry.contributions[at].waiting) return &place;
  }
  return nullptr;
}

std::vector<RendezvousTable::Pending> RendezvousTable::AllPending() const {
  std::vector<Pending> pending;
  for (const auto& [place, entry] : entries_) {
    for (size_t i = 0; i < entry.contributions.size(); ++i) {
      if (!entry.contributions[i].waiting) continue;
      pending.push_back({.key = entry.key, .rank = members_.ranks()[i]});
    }
  }
  return pending;
}

// ---- what was contributed

bool RendezvousTable::IsAnswered(const CallPlace& place, Rank rank) const {
  const auto at = entries_.find(place);
  if (at == entries_.end()) return false;
  const size_t position = members_.PositionOf(rank);
  return at->second.contributions[position].present &&
         at->second.meetings[members_.GroupAt(position)].result != nullptr;
}

std::optional<size_t> RendezvousTable::ChannelsOf(
    const CallPlace& place) const {
  const auto at = entries_.find(place);
  if (at == entries_.end()) return std::nullopt;
  return at->second.channels;
}

CombinedMoments RendezvousTable::ForwardResults() const {
  CombinedMoments results;
  if (members_.count() != 1) return results;
  for (const auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place)) continue;
    COHORT_CHECK(entry.meetings[0].result != nullptr,
                 "a rendezvous is not complete");
    results.push_back({.place = place, .moments = entry.meetings[0].result});
  }
  return results;
}

KeptForward RendezvousTable::TakeForward() {
  KeptForward kept{.members = members_.ranks()};
  // By layer. The call of an entry is its number among those of its layer, in
  // all parts and with all names, so that members line up.
  std::map<int32_t, int32_t> calls;
  for (auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place)) continue;
    const int32_t call = calls[place.layer]++;
    if (entry.kept.empty()) continue;
    kept.calls.push_back({.layer = place.layer,
                          .call = call,
                          .moments = std::exchange(entry.kept, {})});
  }
  std::stable_sort(kept.calls.begin(), kept.calls.end(),
                   [](const KeptForward::Call& a, const KeptForward::Call& b) {
                     return a.layer < b.layer;
                   });
  return kept;
}

}  // namespace cohort
