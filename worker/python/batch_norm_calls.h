#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "kernels/backend.h"
#include "kernels/batch_norm_args.h"
#include "worker/batch_norm/host_batch_norm.h"
#include "worker/batch_norm/rendezvous.h"
#include "worker/python/moving_buffers.h"

namespace cohort {

// Batch norm of one training step: moments of each call, their rendezvous, and
// both passes over tensors in host memory, given as raw pointers. The
// arithmetic is that of the C++ worker (host_batch_norm.h). For tensors
// elsewhere the caller computes, and only meets here.
//
// The script cannot leave a pass: once its step is void, each call is answered
// with its own moments, and the step's end says why.
//
// Thread safety: one thread at a time.
class BatchNormCalls {
 public:
  // What the two passes of a call share.
  struct Saved {
    // Place of the forward call.
    CallPlace place;
    // Moments of the local batch, to recognise the call when it is computed
    // again.
    Moments local;
    BatchStatistics by;
    // How often the call was computed again.
    mutable int32_t repetitions = 0;
  };
  using SharedCall = std::shared_ptr<const Saved>;

  // Identifies a call, except for its numbers.
  struct CallArgs {
    // -1: not registered.
    int32_t layer = 0;
    // Name of a call that is not registered, or the script's name of a call.
    std::string site;
    double epsilon = 1e-5;
    // Extents of the input after batch and channels.
    std::vector<int64_t> extents;
    MovingBuffers::Update update;
  };

  struct ForwardArgs {
    CallArgs call;
    // Without mean and deviation, which are set here.
    kernels::NormalizeArgs tensors;
  };

  struct BackwardArgs {
    SharedCall saved;
    // The visit of the call; see CallPlace.
    std::vector<int32_t> path;
    // Without mean, deviation and sums, which are set here.
    kernels::BackwardElementwiseArgs tensors;
    // [2, channels]: where the gradients of scale and shift go.
    double* affine = nullptr;
    // Whether the input's gradient is needed. This is a property of the model,
    // so all members agree on whether the rendezvous takes place.
    bool needs_dx = false;
  };

  // Both must outlive this object.
  BatchNormCalls(Rendezvous& rendezvous, const kernels::Backend& backend,
                 std::vector<BatchNormSpec> layers);

  MovingBuffers& buffers() { return buffers_; }

  // Starts a step.
  void Begin(const Assignment& assignment);
  // Starts the next part of the step. Its calls are numbered from 0.
  void BeginPart();
  // Forward calls in this step, by part and layer, for the closing.
  std::vector<int32_t> Counts() const;
  // Moments of the calls so far that had no rendezvous, ascending by (layer,
  // call); with local steps, those of each layer together.
  std::vector<CallMoments> TakeMoments();

  // With local steps the layers must keep their registered settings, and the
  // closing has no changes. No-op without.
  // Errors: InvalidArgument naming the layer that does not.
  absl::Status SettleLocalSteps(std::vector<LayerChanges>& changes) const;

  // Calls that do not need each other's output; they meet in one rendezvous
  // request.
  std::vector<SharedCall> Forward(absl::Span<const ForwardArgs> calls);
  // A call that is computed again, as activation checkpointing does: normalised
  // as the first time, without a rendezvous.
  // Errors: FailedPrecondition if the step has no call of this layer with the
  //   same moments.
  absl::StatusOr<SharedCall> Repeat(const ForwardArgs& call);
  // The backward passes of calls, in one rendezvous request.
  void Backward(absl::Span<const BackwardArgs> calls);

  // ---- the same, computed by the caller

  struct LocalCall {
    CallArgs call;
    Moments moments;
  };
  std::vector<SharedCall> Meet(std::vector<LocalCall> calls);
  // The call with these moments, up to a relative difference of `tolerance`:
  // devices may compute a batch again with other rounding.
  // Errors: FailedPrecondition if there is none.
  absl::StatusOr<SharedCall> Recall(int32_t layer, const Moments& local,
                                    double tolerance) const;
  // Sums of a visit of a call, or of a derivative of one.
  struct LocalSums {
    SharedCall saved;
    std::vector<int32_t> path;
    Moments sums;
  };
  // The sum over all members.
  std::vector<Moments> MeetBackward(std::vector<LocalSums> calls);
  // The numbers that all members of a meeting, under a name, bring.
  struct Meeting {
    std::vector<double> sums;
    // Squared differences from the mean; 0: all have the same number.
    std::vector<double> spreads;
    int64_t members = 0;
  };
  Meeting Sum(const std::string& site, std::vector<double> own);

 private:
  // Calls of one name. `layer` is -1 for those that are not registered.
  struct Site {
    int32_t layer = 0;
    std::string name;
    friend auto operator<=>(const Site&, const Site&) = default;
  };

  Moments MomentsOf(const ForwardArgs& call) const;
  CallPlace PlaceOf(const CallArgs& call);
  // The moments of all members; without a rendezvous, the local ones.
  std::vector<Moments> Exchange(absl::Span<const Contribution> local);
  void Normalize(const ForwardArgs& call, const Saved& saved) const;
  void InputGradient(const BackwardArgs& call, const Moments& all) const;

  Rendezvous& rendezvous_;
  const kernels::Backend& backend_;
  const std::vector<BatchNormSpec> layers_;
  MovingBuffers buffers_;

  int32_t part_ = 0;
  // Calls are numbered apart in each part where members meet, and through the
  // step where they do not; then parts are counted apart with local steps only.
  bool meets_ = true;
  // Members of a step that has local ones; 0: it has none.
  int64_t local_members_ = 0;
  std::map<Site, int32_t> numbers_;
  // By part and layer.
  std::vector<int32_t> counts_;
  std::vector<CallMoments> kept_;
  // By layer; the last has those that are not registered.
  std::vector<std::vector<SharedCall>> made_;
};

}  // namespace cohort
