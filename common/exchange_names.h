#pragma once

#include "common/assignment.h"
#include "common/push.h"

namespace cohort {

// The names by which people and programs outside see assignments and verdicts:
// in the Python front-end and in the log of the exchange.
const char* AssignmentName(AssignmentKind kind);
const char* VerdictName(Verdict verdict);

}  // namespace cohort
