#include "server/core/push_history.h"

#include <algorithm>

#include "common/check.h"

namespace cohort {
namespace {

// From the newest on: almost every question is about that one, and at a commit
// of 1,000 ranks the older ones are in no cache.
template <typename Entries>
auto* FindIn(Entries& entries, const PushKey& key) {
  const auto entry =
      std::find_if(entries.rbegin(), entries.rend(),
                   [&key](const auto& entry) { return entry.key == key; });
  return entry == entries.rend() ? nullptr : &*entry;
}

}  // namespace

void PushHistory::Give(const PushKey& key) {
  COHORT_CHECK(entries_.empty() || entries_.back().key < key,
               "keys are given in ascending order");
  if (entries_.size() == kKept) {
    const PushKey& oldest = entries_.front().key;
    forgotten_ = {.sequence = oldest.sequence,
                  .attempt = oldest.attempt.Next()};
    entries_.pop_front();
  }
  entries_.push_back({.key = key});
}

void PushHistory::Decide(const PushKey& key, const PushVerdict& verdict) {
  Entry* entry = Find(key);
  if (entry == nullptr || entry->verdict.has_value()) return;
  entry->verdict = verdict;
  entry->verdict->next = {};
  last_ = entry->verdict;
}

PushHistory::Entry* PushHistory::Find(const PushKey& key) {
  return FindIn(entries_, key);
}

const PushHistory::Entry* PushHistory::Find(const PushKey& key) const {
  return FindIn(entries_, key);
}

bool PushHistory::Forgotten(const PushKey& key) const {
  return key.sequence >= Sequence(1) && key.attempt >= Attempt(0) &&
         key < forgotten_;
}

}  // namespace cohort
