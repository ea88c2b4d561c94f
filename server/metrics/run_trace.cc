#include "server/metrics/run_trace.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace cohort {
void RunTrace::Arrived(const ReduceKey& key, absl::string_view layer, Rank rank,
                       Instant now, absl::Span<const Effect> effects) {
  // A call that is over already has its answer and waits for nothing.
  const bool over =
      std::any_of(effects.begin(), effects.end(), [&](const Effect& effect) {
        const auto* aborted = std::get_if<effect::ReduceAborted>(&effect);
        return aborted != nullptr && aborted->rank == rank &&
               aborted->key == key;
      });
  if (over) return;
  MutexLock lock(mu_);
  std::map<ReduceKey, Waiting>& own = waiting_[rank];
  std::erase_if(own, [&key](const auto& other) {
    return other.first.step != key.step || other.first.attempt != key.attempt;
  });
  own[key] = {.layer = std::string(layer), .since = now};
  for (const Effect& effect : effects) {
    const auto* result = std::get_if<effect::ReduceResult>(&effect);
    if (result == nullptr) continue;
    std::map<ReduceKey, Waiting>& member = waiting_[result->rank];
    const auto at = member.find(result->key);
    if (at != member.end()) at->second.last = rank;
  }
}

void RunTrace::Answered(const ReduceKey& key, Rank rank, Instant now) {
  Waiting waited;
  {
    MutexLock lock(mu_);
    std::map<ReduceKey, Waiting>& member = waiting_[rank];
    const auto at = member.find(key);
    if (at == member.end()) return;
    waited = at->second;
    member.erase(at);
  }
  const bool forward = key.place.phase == ReducePhase::kForward;
  Span span{.name = "rendezvous",
            .begin = waited.since,
            .end = now,
            .track = absl::StrCat("rendezvous of rank ", rank.value()),
            .facts = {{"step", key.step.value()},
                      {"attempt", int64_t{key.attempt.value()}},
                      {"layer", waited.layer},
                      {"call", int64_t{key.place.call}},
                      {"phase", forward ? "forward" : "backward"}}};
  if (waited.last.has_value()) {
    span.facts.emplace_back("last_rank", int64_t{waited.last->value()});
  }
  timeline_.Add(std::move(span));
}

void RunTrace::Folded(const TracedFold& fold) {
  {
    MutexLock lock(mu_);
    if (!apply_begin_.has_value() || fold.begin < *apply_begin_) {
      apply_begin_ = fold.begin;
    }
    ++folds_;
  }
  timeline_.Add({.name = "fold",
                 .begin = fold.begin,
                 .end = fold.end,
                 .facts = {{"partition", int64_t{fold.partition}},
                           {"pass", fold.pass},
                           {"transaction", fold.transaction},
                           {"contributions", fold.contributions}}});
}

void RunTrace::Prepared(const ShardStats::Prepared& prepared, Version version) {
  timeline_.Add({.name = "prepare",
                 .begin = prepared.begin,
                 .end = prepared.end,
                 .track = absl::StrCat("shard ", prepared.shard),
                 .facts = {{"shard", int64_t{prepared.shard}},
                           {"version", version.value()}}});
}

void RunTrace::Committed(const CommitRecord& record, Instant now) {
  Instant begin = now;
  int64_t folds = 0;
  {
    MutexLock lock(mu_);
    if (apply_begin_.has_value()) begin = *apply_begin_;
    apply_begin_.reset();
    folds = std::exchange(folds_, 0);
  }
  timeline_.Add({.name = "apply",
                 .begin = begin,
                 .end = now,
                 .track = "apply",
                 .facts = {{"version", record.version.value()},
                           {"samples", record.commit_samples},
                           {"folds", folds},
                           {"staleness_versions", record.staleness_versions},
                           {"skipped", int64_t{record.skipped}}}});
}

}  // namespace cohort
