#include "common/exchange_names.h"

#include <cstddef>

namespace cohort {

const char* AssignmentName(AssignmentKind kind) {
  constexpr const char* kNames[] = {"train", "evaluate", "wait", "finished",
                                    "collect_moments"};
  return kNames[static_cast<size_t>(kind)];
}

const char* VerdictName(Verdict verdict) {
  constexpr const char* kNames[] = {"applied", "damped", "skipped", "dropped",
                                    "rejected_nonfinite"};
  return kNames[static_cast<size_t>(verdict)];
}

}  // namespace cohort
