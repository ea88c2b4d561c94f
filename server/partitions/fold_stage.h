#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/core/model/commands.h"
#include "server/core/model/shard_place.h"
#include "server/core/optimizer/fold_report.h"
#include "server/partitions/fold_job.h"
#include "server/partitions/transaction.h"

namespace cohort {

// The partitions of one shard: it holds accepted gradients unfolded until a
// plan names them, folds them, and prepares the next version beside the present
// one. The coordinator decides; this carries out, and knows no worker but by
// the key of its push.
//
// Thread safety: none.
class FoldStage {
 public:
  explicit FoldStage(const ShardPlace& place = {}) : place_(place) {}

  // Returns the folds that are complete with it: none or one.
  std::vector<FoldJob> Hold(HeldGradient gradient);
  // `push` has sent `partition`, and no fold has taken it.
  bool Holds(const PushId& push, int32_t partition) const {
    const auto held = pushes_.find(push);
    return held != pushes_.end() && held->second.contains(partition);
  }
  // The gradients of `push` go into nothing. Returns them, so that the caller
  // can free them without a lock. No-op if there are none.
  std::vector<HeldGradient> Drop(const PushId& push);

  // Folds what `plan` names, as soon as it is there. The transaction before it
  // must be over. Returns the folds that are complete by now.
  std::vector<FoldJob> Prepare(CommitPlan plan, PlanContext context);
  // A fold has ended, of this transaction or of one that is over.
  FoldReport FoldDone(FoldResult result);
  // Begins the next pass of the transaction, which must await it
  // (Transaction::AwaitsScales).
  std::vector<FoldJob> Scale(const GradientScales& scales) {
    return transaction_->Scale(scales);
  }
  // The transaction is over. Its contributors hold nothing any more. Returns
  // it, so that its memory can be freed without a lock, as Drop does.
  std::optional<Transaction> Commit(int64_t transaction);
  // The transaction is over. Its folds come to nothing; gradients that were not
  // folded yet are held until they are dropped. No-op if it is over already.
  std::optional<Transaction> Abort(int64_t transaction);
  // Null if none is in progress.
  const Transaction* transaction() const {
    return transaction_.has_value() ? &*transaction_ : nullptr;
  }

 private:
  // By partition; one that a fold has taken is gone.
  using Parts = std::map<int32_t, HeldGradient>;

  bool Contributes(const PushId& push) const;

  // The fold of `partition`, if all contributors have sent it.
  std::optional<FoldJob> FoldIfComplete(int32_t partition);

  ShardPlace place_;
  std::map<PushId, Parts> pushes_;
  std::optional<Transaction> transaction_;
  // By partition: contributors of the transaction whose gradient is here.
  std::vector<size_t> arrived_;
};

}  // namespace cohort
