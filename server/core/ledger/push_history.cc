#include "server/core/ledger/push_history.h"

#include <cstddef>

#include "common/check.h"

namespace cohort {
namespace {

// From the newest on: almost every question is about that one, and at a commit
// of 1,000 ranks the older ones are in no cache.
template <typename Entries>
auto FindIn(Entries& entries, size_t oldest, const PushKey& key)
    -> decltype(entries.data()) {
  for (size_t age = 1; age <= entries.size(); ++age) {
    auto& entry = entries[(oldest + entries.size() - age) % entries.size()];
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

}  // namespace

void PushHistory::Give(const PushKey& key) {
  const bool full = entries_.size() == kKept;
  const size_t newest = (oldest_ + entries_.size() - 1) % kKept;
  COHORT_CHECK(entries_.empty() || entries_[newest].key < key,
               "keys must ascend");
  if (!full) {
    entries_.push_back({.key = key});
    return;
  }
  Entry& oldest = entries_[oldest_];
  forgotten_ = {.sequence = oldest.key.sequence,
                .attempt = oldest.key.attempt.Next()};
  oldest = {.key = key};
  oldest_ = (oldest_ + 1) % kKept;
}

void PushHistory::Decide(const PushKey& key, const PushVerdict& verdict) {
  Entry* entry = Find(key);
  if (entry == nullptr || entry->verdict.has_value()) return;
  entry->verdict = verdict;
  entry->verdict->next = {};
  last_ = entry->verdict;
}

PushHistory::Entry* PushHistory::Find(const PushKey& key) {
  return FindIn(entries_, oldest_, key);
}

const PushHistory::Entry* PushHistory::Find(const PushKey& key) const {
  return FindIn(entries_, oldest_, key);
}

bool PushHistory::Forgotten(const PushKey& key) const {
  return key.sequence >= Sequence(1) && key.attempt >= Attempt(0) &&
         key < forgotten_;
}

}  // namespace cohort
