#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/membership/rank_table.h"
#include "server/core/model/commands.h"
#include "server/core/step/arrived_push.h"
#include "server/core/step/pending_commit.h"
#include "server/core/step/run_parts.h"

// Functions that every step driver needs for one push and one commit.
namespace cohort {

// Counts a message that was there before, and reports it if it differs.
void CountArrival(const Worker& worker, ArrivedPush::Arrival arrival,
                  RunLedger& ledger, Turn& turn);

// Sends folded weights of the next version to the push of `key`. No-op if there
// are none.
void SendResult(const PendingCommit& commit, int32_t partition,
                const Worker& worker, const PushKey& key, Turn& turn);

// Answers a gradient of the push of `key`. `fresh`: it is no repetition.
void TakeGradient(const Worker& worker, const PushKey& key,
                  const GradientArrival& gradient, bool fresh, Turn& turn);
// A fold was reported. False: it is of another transaction, such as one that
// was given up. Begins the next pass, if there is one, once one has ended.
bool TakeFold(FoldReport report, PendingCommit& commit, Turn& turn);
enum class TransactionEnd {
  kCommitted,
  // Nothing comes of it, and the version stays.
  kAborted,
  // Nothing comes of it, but there is a new version with the old weights.
  kSkipped,
};
// `commit` is over for the shards. Comes after the new version of `model`, if
// there is one.
void EndTransaction(const PendingCommit& commit, TransactionEnd end,
                    ModelStore& model, Turn& turn);
// Tells the shards to discard the gradients of `push`.
void DropGradients(Rank rank, const ArrivedPush& push, Turn& turn);

// The push of `key` is decided. Returns its answer, which is to be sent once
// the turn has settled.
effect::SendVerdict DecidePush(RunParts& parts, Rank rank, const PushKey& key,
                               const PushVerdict& verdict);
// Decides the push of `key` and queues its answer, with the statistics of the
// newest version if the worker takes them. `weights_partitions` as in
// effect::SendVerdict.
void AnswerPush(RunParts& parts, Worker& worker, const PushKey& key,
                const PushVerdict& verdict, int32_t weights_partitions,
                Turn& turn);

// A complete push is not applied because the run is over.
void AnswerGivenUp(RunParts& parts, Rank rank, const PushKey& key, Turn& turn);
// Answers a message of a rendezvous that is over.
// Errors: FailedPrecondition: the policy never had any.
absl::Status RefuseReduce(const RunParts& parts, const Worker& worker,
                          const ReduceKey& key, Turn& turn);

// Tells a worker that there is nothing more to do, and why.
Assignment FinishedAssignment(const RunParts& parts, const std::string& reason);

// "rank 2: moments of bn1", if any of a closed push are not finite.
std::optional<std::string> NonfiniteMoments(const ModelStore& model, Rank rank,
                                            const ArrivedPush& push);
// "combined moments of bn1".
std::string OverflowText(const ModelStore& model, int32_t layer);
std::string NonfiniteText(const ModelStore& model,
                          const NonfiniteGradient& where);
// Counts a commit that was not finite; asks for the end of the run if there
// were too many in a row. `what` names the number, `units` what is committed:
// "steps".
void CountNonfinite(RunParts& parts, const std::string& what,
                    const std::string& units, Turn& turn);

// Warns once about ranks that train the same batches. `ranks`: an answer of
// SameBatches.
void WarnOfSameBatches(RunParts& parts, const std::vector<Rank>& ranks,
                       Turn& turn);

// Notes what became of the moments of so many pushes.
void CountStatistics(RunParts& parts, int64_t StatisticsCounts::*what,
                     int64_t pushes);

// Samples of a nominal global step: `global_batch`, or the batch sizes of all
// ranks.
int64_t SamplesReference(const RunParts& parts);

// The present version was committed. `training_done`: no step follows.
void NoteCommit(RunParts& parts, const CommitRecord& record,
                CommitObservation observation, bool training_done, Turn& turn);

}  // namespace cohort
