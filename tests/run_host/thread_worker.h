// A worker in a separate thread, which calls a shard as the gRPC adapters do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/mutex.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/run/run_host.h"

namespace cohort {

// Three partitions of 1,000 elements each where a partition is 4,000 bytes, and
// one batch-norm layer of two channels.
ModelLayout ThreadLayout();
// One epoch of `samples`; the losses of four samples weigh 1 each.
RunPlan ThreadPlan(int64_t samples);

// Element `element` of the gradient over `range`. Values are eighths, so that
// their sums are exact in any order.
inline float ThreadGradient(const IndexRange& range, int64_t element) {
  return static_cast<float>(range.begin % 7 + element % 5 - 4) / 8;
}

// Messages to a worker, from any thread of the shard.
class Inbox {
 public:
  // How the wait for a message ended.
  enum class Told { kMessage, kNewAssignment, kEnded };

  void Joined(const effect::Joined& joined) ABSL_LOCKS_EXCLUDED(mu_);
  void Assigned(const Assignment& assignment) ABSL_LOCKS_EXCLUDED(mu_);
  void Answered(const absl::StatusOr<RegisterAnswer>& answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Decided(const effect::SendVerdict& verdict) ABSL_LOCKS_EXCLUDED(mu_);
  void Reduced(const ReduceKey& key, const Moments& moments)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Resumed() ABSL_LOCKS_EXCLUDED(mu_);
  void Ended(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Each waits until its message has arrived. Fails the test after a minute.
  Incarnation AwaitJoined() ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<RegisterAnswer> AwaitAnswer() ABSL_LOCKS_EXCLUDED(mu_);
  // The newest one with a higher number than `last`; absent if a stream has
  // ended.
  std::optional<Assignment> AwaitAssignment(Sequence last)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Also returns if another assignment replaces the push.
  Told AwaitVerdict(const PushKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  Told AwaitReduced(const ReduceKey& key, Sequence sequence, Moments& result)
      ABSL_LOCKS_EXCLUDED(mu_);
  Told AwaitResumed(Sequence sequence) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Replaced(Sequence sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::optional<Incarnation> incarnation_ ABSL_GUARDED_BY(mu_);
  std::optional<Assignment> newest_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<RegisterAnswer>> answer_ ABSL_GUARDED_BY(mu_);
  std::map<PushKey, int32_t> verdicts_ ABSL_GUARDED_BY(mu_);
  std::map<ReduceKey, Moments> results_ ABSL_GUARDED_BY(mu_);
  int64_t resumed_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t resumed_seen_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread safety: none; one thread runs it.
class ThreadWorker {
 public:
  // `shard` must outlive the worker.
  ThreadWorker(RunHost& shard, Rank rank, RunPlan plan)
      : run_(shard), rank_(rank), plan_(std::move(plan)) {}

  // In every push whose number is a multiple of this, the worker leaves after
  // its first gradient, and comes back as a new process.
  void LeaveEvery(int64_t pushes) { leave_every_ = pushes; }
  // It also contributes to an ended step, for a layer that does not exist.
  void SendOldCalls() { sends_old_calls_ = true; }
  // Works until the run is over.
  void Run();

  // Closed pushes, and those of them that a verdict answered.
  int64_t closed() const { return closed_; }
  int64_t answered() const { return answered_; }

 private:
  // One process: returns true once the run is over.
  bool Live();
  absl::Status Register();
  // Returns false if the push was replaced, or the worker has left.
  bool Train(const Assignment& assignment);
  absl::Status Reduce(const Assignment& assignment);
  // The first `count` partitions in the order of sending.
  bool SendGradients(const Assignment& assignment, size_t count);
  bool OpenPush(const Assignment& assignment);
  void SendOldCall();

  // Fixed after construction.
  RunHost& run_;
  const Rank rank_;
  const RunPlan plan_;

  int64_t leave_every_ = 0;
  bool sends_old_calls_ = false;
  int64_t pushes_ = 0;
  int64_t closed_ = 0;
  int64_t answered_ = 0;

  // Replaced with each process.
  std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<SessionStream> session_stream_;
  std::shared_ptr<ExchangeStream> exchange_;
  std::shared_ptr<ReduceStream> reduce_;
  SessionId session_;
  Sender sender_;
  std::vector<Partition> partitions_;
};

}  // namespace cohort
