#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/formats/file_system.h"
#include "common/ids.h"

namespace cohort {

// Counts the starts of servers on one --checkpoint_dir. The count makes the
// incarnations of a start larger than those of all earlier starts, even if the
// clock was set back or checkpoints were removed in between:
//
//   incarnation = boot number * 2^32 + number of the join since that start
//
// The number is stored in the file `boot` beside the checkpoints, one line:
//
//   cohort-boot 1 <number, decimal> <XXH3-64 of "cohort-boot 1 <number>">
//
// It is written and synced before the server listens, so a number may be
// skipped but is never used twice. There is no check for more than 2^32 joins
// in one start: at a thousand a second they take 50 days.
struct BootNumber {
  static constexpr int64_t kFirst = 1;

  int64_t number = kFirst;
  // If not empty: what was wrong with the file, and how the number was chosen.
  std::string problem;

  Incarnation first_incarnation() const { return Incarnation(number << 32); }
};

// Takes the next number of `dir`, which the caller holds locked. `next` is the
// next incarnation of the checkpoint that is continued; nullopt for a new run.
//
// If the file is damaged, or is missing although a run is continued, the number
// of starts is unknown: the checkpoint may be a copy, or older than the last
// start. The number then leaps by 1 + `chance` modulo 2^16. Two copies of one
// checkpoint, or a forgotten start, then use the same number only with a
// probability of 2^-16.
// Errors: those of FileSystem (the number must then not be used);
//   FailedPrecondition: no number is left.
absl::StatusOr<BootNumber> TakeBootNumber(FileSystem& files,
                                          const std::string& dir,
                                          std::optional<Incarnation> next,
                                          uint32_t chance);

}  // namespace cohort
