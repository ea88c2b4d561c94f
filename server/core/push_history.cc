#include "server/core/push_history.h"

#include <algorithm>

#include "common/check.h"

namespace cohort {
namespace {

struct Has {
  const PushKey& key;
  bool operator()(const PushHistory::Entry& entry) const {
    return entry.key == key;
  }
};

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
  const auto entry = std::find_if(entries_.begin(), entries_.end(), Has{key});
  return entry == entries_.end() ? nullptr : &*entry;
}

const PushHistory::Entry* PushHistory::Find(const PushKey& key) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), Has{key});
  return entry == entries_.end() ? nullptr : &*entry;
}

bool PushHistory::Forgotten(const PushKey& key) const {
  return key.sequence >= Sequence(1) && key.attempt >= Attempt(0) &&
         key < forgotten_;
}

}  // namespace cohort
