#pragma once

#include <compare>
#include <cstdint>
#include <ostream>

#include "absl/strings/str_cat.h"

namespace cohort {

// An integer that cannot be mistaken for another kind of integer.
template <typename Tag, typename T>
class Id {
 public:
  using Value = T;

  constexpr Id() = default;
  constexpr explicit Id(T value) : value_(value) {}

  constexpr T value() const { return value_; }
  constexpr Id Next() const { return Id(value_ + 1); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, const Id& id) {
    return os << id.value_;
  }

 private:
  T value_ = 0;
};

// A worker's stable number, 0-based.
using Rank = Id<struct RankTag, int32_t>;
// Fencing number of one incarnation of a worker; 0 means none.
using Incarnation = Id<struct IncarnationTag, int64_t>;
// A rank's own assignment number, rising over restarts; the first is 1.
using Sequence = Id<struct SequenceTag, int64_t>;
// Counts repetitions of a step after a loss, from 0.
using Attempt = Id<struct AttemptTag, int32_t>;
// Number of commits so far, which is also the number of the next step.
using Version = Id<struct VersionTag, int64_t>;
// One session stream, as numbered by the service.
using SessionId = Id<struct SessionTag, int64_t>;

}  // namespace cohort
