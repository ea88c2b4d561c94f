#pragma once

#include <map>
#include <string>

#include "cohort/v1/admin.pb.h"

namespace cohort {

// Mean seconds of a step in which a worker computes, reads and sends, and in
// which it waits for others.
struct StepTime {
  double own = 0;
  double waiting = 0;
};
StepTime StepTimeOf(const v1::WorkerStatus& worker);

// Why a worker delays the others, or soon may, by rank: it is away, silent, or
// one of the server's slow workers.
std::map<int32_t, std::string> Stragglers(const v1::Status& status);

}  // namespace cohort
