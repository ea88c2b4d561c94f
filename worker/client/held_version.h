#pragma once

#include <optional>

#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "worker/client/client.h"

namespace cohort {

// The version of the weights in a worker's model, and whether an assignment
// needs another one, or the moving average of one.
//
// Thread safety: none.
class HeldVersion {
 public:
  // `incarnation` is that of the client now; no version is held yet.
  explicit HeldVersion(Incarnation incarnation) : incarnation_(incarnation) {}

  // Absent if the weights are not a version of the server's.
  const std::optional<Version>& version() const { return version_; }
  // `read` is how they were pulled.
  void Hold(Version version, const PullOptions& read = {}) {
    version_ = version;
    is_draft_ = false;
    is_average_ = read.statistics_kind == kAverageStatistics;
  }
  void Forget() { version_.reset(); }
  // Updates of the step in progress have changed the weights of the version.
  void Draft() { is_draft_ = true; }
  bool is_draft() const { return is_draft_; }

  // What to pull before `assignment` is computed; absent: the weights fit.
  // `incarnation` is that of the client now.
  std::optional<PullOptions> MissingFor(const Assignment& assignment,
                                        Incarnation incarnation);

  // What a push did to the weights of this worker.
  enum class Outcome {
    // The weights stay, as those of the verdict's version.
    kSame,
    // `PushResult::weights` are those of the verdict's version.
    kArrived,
    // The version is not known; the next step pulls.
    kUnknown,
  };
  static Outcome OutcomeOf(const PushResult& result,
                           absl::Span<const Partition> partitions);

 private:
  std::optional<Version> version_;
  bool is_draft_ = false;
  // The weights are the moving average at that version.
  bool is_average_ = false;
  // The incarnation that the version was read in.
  Incarnation incarnation_;
};

}  // namespace cohort
