#include "server/core/statistics/rendezvous.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
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
    : members_(std::move(ranks)),
      options_(options),
      waits_(members_.size()),
      states_(members_.size()) {
  CountGroups();
}

// ---- positions and groups

size_t RendezvousTable::PositionOf(Rank rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), rank);
  COHORT_CHECK(it != members_.end() && *it == rank,
               absl::StrCat("rank ", rank.value(), " is not a member"));
  return static_cast<size_t>(it - members_.begin());
}

size_t RendezvousTable::GroupAt(size_t position) const {
  if (options_.group_size == 0) return 0;
  return position / static_cast<size_t>(options_.group_size);
}

size_t RendezvousTable::GroupCount() const {
  return members_.empty() ? 0 : GroupAt(members_.size() - 1) + 1;
}

RendezvousTable::Range RendezvousTable::RangeOf(size_t group) const {
  const size_t size = options_.group_size == 0
                          ? members_.size()
                          : static_cast<size_t>(options_.group_size);
  return {.begin = group * size,
          .end = std::min((group + 1) * size, members_.size())};
}

std::vector<std::vector<Rank>> RendezvousTable::Groups() const {
  std::vector<std::vector<Rank>> groups(GroupCount());
  for (size_t i = 0; i < members_.size(); ++i) {
    groups[GroupAt(i)].push_back(members_[i]);
  }
  return groups;
}

void RendezvousTable::CountGroups() {
  groups_.assign(GroupCount(), {});
  rested_.clear();
  resting_ = groups_.size();
  doomed_ = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    const size_t group = GroupAt(i);
    if (waits_[i] > 0) ++groups_[group].waiting;
    if (waits_[i] == 0 && !states_[i].closed) ChangeBusy(group, 1);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].busy == 0) rested_.push_back(group);
  }
}

void RendezvousTable::ChangeBusy(size_t group, int32_t change) {
  int32_t& busy = groups_[group].busy;
  if (busy == 0) --resting_;
  busy += change;
  if (busy > 0) return;
  ++resting_;
  rested_.push_back(group);
}

void RendezvousTable::SetWaiting(Entry& entry, size_t position, bool waiting) {
  if (entry.waiting[position] == waiting) return;
  entry.waiting[position] = waiting;
  const size_t group = GroupAt(position);
  entry.meetings[group].waiting += waiting ? 1 : -1;
  Member& member = states_[position];
  if (waiting) member.last = &entry;
  int32_t& count = waits_[position];
  const bool waited = count > 0;
  count += waiting ? 1 : -1;
  if ((count > 0) == waited) return;
  groups_[group].waiting += waiting ? 1 : -1;
  if (!member.closed) ChangeBusy(group, waiting ? -1 : 1);
}

void RendezvousTable::NoteClosed(Rank rank) {
  const size_t at = PositionOf(rank);
  states_[at].closed_by = states_[at].incarnation;
  if (std::exchange(states_[at].closed, true) || waits_[at] > 0) return;
  ChangeBusy(GroupAt(at), -1);
}

void RendezvousTable::NoteReopened(Rank rank) {
  const size_t at = PositionOf(rank);
  if (!std::exchange(states_[at].closed, false) || waits_[at] > 0) return;
  ChangeBusy(GroupAt(at), 1);
}

void RendezvousTable::Forget(Rank rank) {
  const size_t at = PositionOf(rank);
  for (auto& [place, entry] : entries_) SetWaiting(entry, at, false);
  ++states_[at].incarnation;
  states_[at].made_by_it = 0;
}

// ---- contributions

const RendezvousTable::Entry* RendezvousTable::ForwardOf(
    const CallPlace& place) const {
  CallPlace forward = place;
  forward.phase = ReducePhase::kForward;
  forward.path.clear();
  const auto at = entries_.find(forward);
  return at == entries_.end() ? nullptr : &at->second;
}

RendezvousTable::Entry& RendezvousTable::EntryOf(const ReduceKey& key) {
  Entry& entry = entries_[key.place];
  if (!entry.contributions.empty()) return entry;
  entry.key = key;
  if (!IsForward(key.place)) entry.forward = ForwardOf(key.place);
  entry.contributions.resize(members_.size());
  entry.waiting.resize(members_.size());
  entry.since.resize(members_.size());
  entry.meetings.resize(GroupCount());
  return entry;
}

bool RendezvousTable::KnowsMembers(const Entry& entry, size_t group) {
  if (IsForward(entry.key.place)) return true;
  return entry.forward != nullptr &&
         entry.forward->meetings[group].result != nullptr;
}

bool RendezvousTable::IsIn(const Entry& entry, size_t position) const {
  const Entry& forward = IsForward(entry.key.place) ? entry : *entry.forward;
  return !forward.meetings[GroupAt(position)].partial ||
         forward.contributions[position].present;
}

int32_t RendezvousTable::ExtentsIn(Entry& entry,
                                   const std::vector<int64_t>& extents) {
  // All are equal, or very few differ.
  const auto at =
      std::find(entry.extents.begin(), entry.extents.end(), extents);
  const auto index = static_cast<int32_t>(at - entry.extents.begin());
  if (at == entry.extents.end()) entry.extents.push_back(extents);
  return index;
}

void RendezvousTable::NoteMade(Entry& entry, size_t position,
                               Outcome& outcome) {
  Contribution& slot = entry.contributions[position];
  Member& member = states_[position];
  if (slot.incarnation == member.incarnation) return;
  outcome.fresh = true;
  outcome.first = slot.incarnation < 0;
  if (outcome.first) member.made.push_back(&entry);
  slot.incarnation = member.incarnation;
  ++member.made_by_it;
}

RendezvousTable::Outcome RendezvousTable::Contribute(
    const ReduceKey& key, Rank rank, Moments moments, Instant now,
    const std::vector<int64_t>& extents) {
  Entry& entry = EntryOf(key);
  const size_t at = PositionOf(rank);
  const size_t group = GroupAt(at);
  Contribution& slot = entry.contributions[at];
  Outcome outcome;
  NoteMade(entry, at, outcome);
  const uint64_t checksum = ChecksumOf(moments);
  if (slot.present || slot.late) {
    outcome.mismatch = slot.checksum != checksum;
    NoteRepeated(entry, at, now, outcome);
    return outcome;
  }
  slot.checksum = checksum;
  slot.extents = ExtentsIn(entry, extents);
  if (KnowsMembers(entry, group) && !IsIn(entry, at)) {
    NoteLate(entry, at, now);
    return outcome;
  }
  slot.present = true;
  slot.bytes = static_cast<int64_t>(
      (moments.first.size() + moments.second.size()) * sizeof(double));
  entry.channels = moments.first.size();
  slot.moments = std::move(moments);
  states_[at].bytes += slot.bytes;
  SetWaiting(entry, at, true);
  entry.since[at] = now;
  ++entry.present;
  ++entry.meetings[group].present;
  if (options_.fixed) Extend(entry, group, now, outcome);
  return outcome;
}

void RendezvousTable::NoteRepeated(Entry& entry, size_t position, Instant now,
                                   Outcome& outcome) {
  outcome.repeated = true;
  // A late contribution has no answer.
  if (entry.contributions[position].present) {
    outcome.result = entry.meetings[GroupAt(position)].result;
  }
  SetWaiting(entry, position, outcome.result == nullptr);
  if (outcome.result == nullptr) {
    entry.since[position] = now;
  } else {
    outcome.answer.push_back(members_[position]);
  }
}

void RendezvousTable::NoteLate(Entry& entry, size_t position, Instant now) {
  entry.contributions[position].late = true;
  SetWaiting(entry, position, true);
  entry.since[position] = now;
  std::optional<Late>& late = groups_[GroupAt(position)].late;
  if (!late.has_value()) ++doomed_;
  // Whichever comes first in time, the same one is named.
  if (late.has_value() && late->rank <= members_[position]) return;
  late = {.rank = members_[position], .place = entry.key.place};
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
  entry.kept.resize(members_.size());
  entry.kept[position] = std::move(folded);
}

void RendezvousTable::StartJob(Entry& entry, size_t group, size_t ready,
                               Outcome& outcome) {
  Fold& fold = entry.meetings[group].fold;
  fold.running = ready;
  ChangeBusy(group, 1);
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
  const Range range = RangeOf(group);
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
  const size_t end = RangeOf(done.group).end;
  fold.total = std::move(done.total);
  for (Moments& part : done.parts) {
    Retain(entry, fold.end, std::move(part));
    fold.end = NextIn(entry, fold.end + 1, end);
  }
  fold.running = 0;
  // More may have come meanwhile.
  Extend(entry, done.group, now, outcome);
  ChangeBusy(done.group, -1);
  return outcome;
}

void RendezvousTable::Observe(const Entry& entry, Range range, Instant now) {
  RendezvousWaits& seen = observed(entry.key.place.phase);
  std::optional<size_t> last;
  size_t met = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    if (!entry.contributions[i].present) continue;
    ++met;
    // An incarnation that was lost has waited for nothing.
    if (entry.waiting[i]) seen.waits.push_back(now - entry.since[i]);
    if (!last.has_value() || entry.since[i] >= entry.since[*last]) last = i;
  }
  // A member that meets no other one waits for none.
  if (met > 1) seen.last.push_back(members_[*last]);
}

void RendezvousTable::Complete(Entry& entry, size_t group, Instant now,
                               Outcome& outcome) {
  const Range range = RangeOf(group);
  Meeting& meeting = entry.meetings[group];
  Observe(entry, range, now);
  meeting.result =
      std::make_shared<const Moments>(std::move(meeting.fold.total));
  outcome.result = meeting.result;
  outcome.nonfinite = !IsUsable(entry.key.place.phase, *outcome.result);
  for (size_t i = range.begin; i < range.end; ++i) {
    if (!entry.contributions[i].present) continue;
    if (entry.waiting[i]) outcome.answer.push_back(members_[i]);
    SetWaiting(entry, i, false);
  }
}

std::vector<RendezvousTable::Completed> RendezvousTable::Fix(
    const std::vector<Rank>& members, Instant now) {
  std::map<CallPlace, Entry> open = std::exchange(entries_, {});
  const std::vector<Rank> candidates = std::exchange(members_, members);
  const std::vector<Member> before = std::exchange(states_, {});
  options_.fixed = true;
  waits_.assign(members_.size(), 0);
  states_.resize(members_.size());
  groups_.assign(GroupCount(), {});
  // By position: where it was among the candidates.
  std::vector<size_t> from;
  for (Rank rank : members_) {
    const auto at =
        std::lower_bound(candidates.begin(), candidates.end(), rank);
    COHORT_CHECK(at != candidates.end() && *at == rank,
                 "a member was not a candidate");
    from.push_back(static_cast<size_t>(at - candidates.begin()));
  }
  for (auto& [place, was] : open) {
    const bool empty =
        std::none_of(from.begin(), from.end(), [&was](size_t position) {
          return was.contributions[position].present;
        });
    // Only ranks that are no members were there.
    if (empty) continue;
    Entry& entry = EntryOf(was.key);
    entry.channels = was.channels;
    entry.extents = std::move(was.extents);
    for (size_t i = 0; i < from.size(); ++i) {
      entry.contributions[i] = std::move(was.contributions[from[i]]);
      entry.since[i] = was.since[from[i]];
      if (entry.contributions[i].present) {
        ++entry.present;
        ++entry.meetings[GroupAt(i)].present;
      }
      SetWaiting(entry, i, was.waiting[from[i]]);
    }
  }
  for (size_t i = 0; i < from.size(); ++i) {
    Member& member = states_[i];
    const Entry* const last = member.last;
    member = before[from[i]];
    member.last = last;
    for (const Entry*& made : member.made) {
      made = &entries_.at(made->key.place);
    }
  }
  CountGroups();
  std::vector<Completed> completed;
  for (auto& [place, entry] : entries_) {
    for (size_t group = 0; group < GroupCount(); ++group) {
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

std::vector<size_t> RendezvousTable::TakeRested() {
  std::vector<size_t> rested = std::exchange(rested_, {});
  std::sort(rested.begin(), rested.end());
  rested.erase(std::unique(rested.begin(), rested.end()), rested.end());
  std::erase_if(rested,
                [this](size_t group) { return groups_[group].busy > 0; });
  return rested;
}

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
  COHORT_CHECK(groups_[group].busy == 0 && IsForward(place) &&
                   entry.meetings[group].result == nullptr,
               "members of the rendezvous may still come");
  entry.meetings[group].partial = true;
  Outcome outcome;
  Extend(entry, group, now, outcome);
  return outcome;
}

std::optional<RendezvousTable::Late> RendezvousTable::FirstLate() const {
  for (const Group& group : groups_) {
    if (group.late.has_value()) return group.late;
  }
  return std::nullopt;
}

std::vector<std::vector<CallPlace>> RendezvousTable::Sequences() const {
  std::vector<std::vector<CallPlace>> sequences;
  for (const Member& member : states_) {
    std::vector<CallPlace>& sequence = sequences.emplace_back();
    for (const Entry* entry : member.made) sequence.push_back(entry->key.place);
  }
  return sequences;
}

}  // namespace cohort
