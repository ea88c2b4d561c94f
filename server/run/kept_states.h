#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/core/model/model_version.h"

namespace cohort {

// The state that the training programs keep beside the model: where it is, who
// has to send it, and the bytes of the last version that was sent. Versions
// before the state first differed from the initial one have none.
//
// A checkpoint of a version waits here for the state of that version. Members
// offer theirs when they begin a step, which is before that step can become a
// version; so the newest version is then the one whose state they send.
// Thread safety: safe. Only Complete waits.
class KeptStates {
 public:
  // Bytes of one state.
  static constexpr int64_t kBytesMax = int64_t{256} << 20;
  // Bytes of a piece of one.
  static constexpr int64_t kPieceBytes = int64_t{4} << 20;

  // The run continues from this state. Call it before all others.
  void Restore(const RunState& state) ABSL_LOCKS_EXCLUDED(mu_);

  struct Holding {
    Version version;
    Version moves_from;
    // It begins no further step, and its state is of use.
    bool last = false;
  };
  // `from` has the state of a version. True: it has to send it.
  // Errors: FailedPrecondition: the checkpoint that the run continues from
  //   should have had one.
  absl::StatusOr<bool> Hold(const Sender& from, const Holding& holding)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The process that has to send one and has not yet.
  std::optional<Sender> giver() const ABSL_LOCKS_EXCLUDED(mu_);
  // That process is gone, and another one may send it.
  void Forget(Incarnation giver) ABSL_LOCKS_EXCLUDED(mu_);

  struct Piece {
    Version version;
    int64_t offset = 0;
    int64_t total = 0;
    std::string bytes;
  };
  struct Receipt {
    // Nothing more is needed.
    bool enough = false;
    // A checkpoint waits for the run's state at the version, too: pass it to
    // Capture before the sender is answered.
    bool awaits_run = false;
  };
  // Errors: InvalidArgument, ResourceExhausted.
  absl::StatusOr<Receipt> Give(Rank rank, Piece piece) ABSL_LOCKS_EXCLUDED(mu_);
  void Capture(RunState state) ABSL_LOCKS_EXCLUDED(mu_);

  struct Request {
    Rank rank;
    Incarnation incarnation;
    Version version;
    // The attempt and the members of the step.
    Attempt attempt;
    int32_t members = 0;
    int64_t offset = 0;
  };
  struct Answer {
    enum class Kind {
      // The state is the initial one.
      kInitial,
      kHere,
      // Some member may have it.
      kAwaited,
      // As kAwaited, and the members are to begin the step again.
      kRepeat,
      // All members have asked.
      kLost,
    };
    Kind kind = Kind::kAwaited;
    Version moves_from;
    int64_t total = 0;
    std::string piece;
  };
  // Errors: InvalidArgument: an offset beyond the end.
  absl::StatusOr<Answer> Take(const Request& request) ABSL_LOCKS_EXCLUDED(mu_);

  // A checkpoint of the present version is due; Complete follows.
  void Want(Version version) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a checkpoint of `version` cannot be written at once.
  bool Lacks(Version version) const ABSL_LOCKS_EXCLUDED(mu_);
  // `state` with the state that belongs to it; if that was never sent, a later
  // state of the run with its own. Waits until one is there.
  // Errors: Unavailable: none came in time, or before Close.
  absl::StatusOr<RunState> Complete(
      RunState state, absl::Duration patience = absl::InfiniteDuration())
      ABSL_LOCKS_EXCLUDED(mu_);
  // From now on Complete waits no longer than this in all.
  void CloseAfter(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  void Close() { CloseAfter(absl::ZeroDuration()); }

 private:
  struct Held {
    Version version;
    SharedText bytes;
  };
  struct Giving {
    Sender from;
    Version version;
    std::string bytes;
  };
  struct Taker {
    Incarnation incarnation;
    Version version;
    // One that lacks the state asks in each attempt, so who has asked in an
    // earlier one only may be gone.
    Attempt attempt;
  };

  bool MovesLocked(Version version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return moves_from_.has_value() && version >= *moves_from_;
  }
  bool HasLocked(Version version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return held_.has_value() && held_->version == version;
  }
  bool IsAwaitedLocked(Version version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether `state` was completed.
  bool CompleteLocked(RunState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyClock clock_{};

  mutable Mutex mu_;
  CondVar changed_;
  // Absent: the state has not moved.
  std::optional<Version> moves_from_ ABSL_GUARDED_BY(mu_);
  // The version that the run continues from, if there was no state with it.
  std::optional<Version> restored_without_ ABSL_GUARDED_BY(mu_);
  std::optional<Held> held_ ABSL_GUARDED_BY(mu_);
  std::optional<Giving> giving_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, Taker> takers_ ABSL_GUARDED_BY(mu_);
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  // Versions whose checkpoints wait, with their number.
  std::map<Version, int> waits_ ABSL_GUARDED_BY(mu_);
  // The run at the version of `held_`, if a checkpoint of an earlier one waits.
  std::optional<RunState> captured_ ABSL_GUARDED_BY(mu_);
  std::optional<Instant> closes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
