#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohort/v1/admin.pb.h"

namespace cohort {

// Parts of a status as people read them.

// The name of the measure that has a value for each class.
inline constexpr char kIouByClass[] = "IoU by class";

// "nightly (3f2a)"; the identifier alone if the name has it in it, or if there
// is none.
std::string RunText(const v1::Status& status);
// The one that is trained, from 1; 0: there is none.
int64_t EpochNumber(const v1::Status& status);
// "2 of 4, 37 % of it".
std::string EpochText(const v1::Status& status);
// "10 images/s, ETA 25 s".
std::string RateText(const v1::Status& status);
// The change under way and whom it waits for.
std::string PendingText(const v1::GetPolicyReply& policy);
// "0.3 s ago"; a rank that nobody ever held was never heard from.
std::string AgeText(const v1::WorkerStatus& worker);
// Names and values of the newest evaluation, the one that counts first.
std::vector<std::pair<std::string, std::string>> TestMeasures(
    const v1::Status& status);

}  // namespace cohort
