#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "common/push.h"

namespace cohort {

// The training assignments that one rank was given lately, and how the push of
// each ended. Repetitions are answered from it, and keys that were never given
// are distinct from keys that are only old. Bounded: older ones are forgotten.
class PushHistory {
 public:
  // A worker has one push in progress and repeats it at most after a broken
  // stream, so this is several times what any client comes back to.
  static constexpr size_t kKept = 16;

  struct Entry {
    PushKey key;
    // Absent: not decided yet. Without `next`, which only holds when it is
    // sent.
    std::optional<PushVerdict> verdict;
    // The push has been answered: what is answered from now on is a repetition.
    bool answered = false;
    // A repetition came before the verdict, and waits for it.
    bool awaited = false;
  };

  // Keys of sequences below `sequence` are old, not impossible: an earlier
  // process gave them.
  void ForgetBelow(Sequence sequence) { forgotten_ = {.sequence = sequence}; }
  // Keys are given in ascending order.
  void Give(const PushKey& key);
  // How the push of `key` ended; the first verdict on it counts. A key that is
  // not known is ignored.
  void Decide(const PushKey& key, const PushVerdict& verdict);

  // Null: never given, or forgotten. Valid until the next Give.
  Entry* Find(const PushKey& key);
  const Entry* Find(const PushKey& key) const;
  // It may have been given, but too long ago to tell what became of it.
  bool Forgotten(const PushKey& key) const;
  // The verdict decided last; null: none is known.
  const PushVerdict* last_verdict() const {
    return last_.has_value() ? &*last_ : nullptr;
  }

 private:
  // At most kKept; the newest overwrites the oldest in its place, so that a
  // commit allocates nothing here.
  std::vector<Entry> entries_;
  // The place of the oldest once all are taken.
  size_t oldest_ = 0;
  // Keys below this one are not known any more. The first sequence is 1.
  PushKey forgotten_{.sequence = Sequence(1)};
  std::optional<PushVerdict> last_;
};

}  // namespace cohort
