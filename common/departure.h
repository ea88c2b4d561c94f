#pragma once

#include <string>

namespace cohort {

// Why a worker leaves, and what that means for its run.
struct Departure {
  enum class Kind {
    // Another process may take its rank.
    kLeaves,
    // Its own data has ended, so the run ends after the current step.
    kDataEnded,
    // Its program was refused in a step, as that of another process would be.
    // So the run ends.
    kRefused,
  };
  std::string reason;
  Kind kind = Kind::kLeaves;
};

}  // namespace cohort
