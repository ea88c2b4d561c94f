#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/formats/file_system.h"
#include "common/ids.h"

namespace cohort {

// Counts the starts of servers on one --checkpoint_dir. It is what makes the
// incarnations of one start larger than those of all starts before it, whatever
// became of the clock and of checkpoints in between:
//
//   incarnation = boot number * 2^32 + number of the join since that start
//
// The number lies in the file `boot` beside the checkpoints, one line:
//
//   cohort-boot 1 <number, decimal> <XXH3-64 of "cohort-boot 1 <number>">
//
// It is written and synced before the server listens, so a number may be
// passed over, but is never used twice. 2^32 joins a start are not checked: at
// a thousand a second they take 50 days.
struct BootNumber {
  // Earlier releases counted incarnations from the milliseconds since 1970,
  // about 2^41 by now, which 1000 * 2^32 is above until the year 2106.
  static constexpr int64_t kFirst = 1000;

  int64_t number = kFirst;
  // Not empty: what was wrong with the file, and how the number was found.
  std::string problem;

  Incarnation first_incarnation() const { return Incarnation(number << 32); }
};

// Takes the next number of `dir`, which the caller holds locked. `next` is that
// of the checkpoint which is continued; none: a new run.
//
// If the file is missing although something is continued, or is damaged,
// nothing tells how many starts there were: the checkpoint may be a copy, or
// older than the last start. The number then leaps by `chance` modulo 2^16 and
// one, which two copies of one checkpoint, or a forgotten start, do not share
// but with a probability of 2^-16.
// Errors: those of FileSystem (the number is then not to be used);
//   FailedPrecondition: no number is left.
absl::StatusOr<BootNumber> TakeBootNumber(FileSystem& files,
                                          const std::string& dir,
                                          std::optional<Incarnation> next,
                                          uint32_t chance);

}  // namespace cohort
