#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/v1/admin.pb.h"

namespace cohort {

// Parts of a status, formatted for people.

// The name of the measure with a value for each class.
inline constexpr char kIouByClass[] = "IoU by class";

// "nightly (3f2a)"; only the identifier if the name contains it or is absent.
std::string RunText(const v1::Status& status);
// The training program's own measures, by name.
std::map<std::string, double> MeasuresOf(const v1::Status& status);
// The epoch that is being trained, from 1; 0 if there is none.
int64_t EpochNumber(const v1::Status& status);
// "2 of 4, 37 % of the run"; of a run without epochs "none, 37 % of the run".
std::string EpochText(const v1::Status& status);
// "12", or "12 (48 local steps)".
std::string StepText(const v1::Status& status);
// "10 images/s, ETA 25 s".
std::string RateText(const v1::Status& status);
// The change in progress and what it waits for.
std::string PendingText(const v1::GetPolicyReply& policy);
// "0.3 s ago"; "never" for a rank that was never held.
std::string AgeText(const v1::WorkerStatus& worker);
// Processor cores in use and memory of a worker, "1.4" and "2.1 GiB"; empty if
// it reports none.
std::string CoresText(const v1::WorkerStatus& worker);
std::string MemoryText(const v1::WorkerStatus& worker);
// "connected", "gone for 12.3 s", "not there yet".
std::string ShardStateText(const v1::ShardStatus& shard,
                           const v1::Status& status);
// The data shards that are not connected, and why: "data shard 1 at
// 10.0.0.2:7070, gone for 12.3 s: Socket closed; data shard 2 at ...". Empty if
// there are none.
std::string MissingShardsText(const v1::Status& status);
// The way to get them back, as the rest of a sentence.
inline constexpr char kMissingShardHint[] =
    "mend what is named, or start `cohort-server --data_shard` at that address "
    "with the flags that it had; if it hangs, kill it first";
// The share of the shard's time for commits in which all others were ready,
// "12 %"; empty before the first commit.
std::string HoldupText(const v1::ShardStatus& shard);
// "3 connected", "2 of 3 connected".
std::string ShardsLine(const v1::Status& status);
// Names and values of the newest evaluation, the main measure first.
std::vector<std::pair<std::string, std::string>> TestMeasures(
    const v1::Status& status);

}  // namespace cohort
