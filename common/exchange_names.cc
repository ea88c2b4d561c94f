#include "common/exchange_names.h"

namespace cohort {

const char* AssignmentName(AssignmentKind kind) {
  switch (kind) {
    case AssignmentKind::kTrain:
      return "train";
    case AssignmentKind::kEvaluate:
      return "evaluate";
    case AssignmentKind::kCollectMoments:
      return "collect_moments";
    case AssignmentKind::kFinished:
      return "finished";
    case AssignmentKind::kWait:
      break;
  }
  return "wait";
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kApplied:
      return "applied";
    case Verdict::kDamped:
      return "damped";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kDropped:
      return "dropped";
    case Verdict::kRejectedNonfinite:
      break;
  }
  return "rejected_nonfinite";
}

}  // namespace cohort
