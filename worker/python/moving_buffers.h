#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"

namespace cohort {

// The moving statistics in a model's buffers. At the beginning of a step they
// are those of its version. Within it each training call moves them as in one
// process, if the policy lets a worker know how. What the training program
// writes into them, and when it reads them, is recorded for the closing.
//
// Writes are found by comparing the buffers with what was last put there.
//
// Thread safety: none.
class MovingBuffers {
 public:
  // Pointers to the statistics of one layer: float32 [channels] each, in host
  // memory. Null: the layer has none.
  struct Place {
    float* mean = nullptr;
    float* variance = nullptr;
    // May be null.
    int64_t* tracked = nullptr;
  };

  // What a training call moves.
  struct Update {
    Place place;
    // Weight of the batch; absent: cumulative average.
    std::optional<double> momentum;
    // The buffers are the layer's, not replacements for this call.
    bool own = true;
  };

  // A training call of a registered layer, and the moments of all members.
  struct Call {
    CallPlace place;
    double epsilon = 0;
    Update update;
    const Moments* all = nullptr;
  };

  explicit MovingBuffers(std::vector<BatchNormSpec> layers);

  // Sets the buffers of the layers, one entry each. They must outlive the
  // object, or the next call.
  void Attach(std::vector<Place> places);

  // Writes the statistics of a version to them, one entry a layer; empty: the
  // version has none, and the buffers stay.
  void Load(absl::Span<const LayerStatistics> version);
  // Writes other statistics to them, until the next Load.
  void Show(absl::Span<const LayerStatistics> other);

  // Records writes between two steps: they become part of the next step.
  void Capture();
  // A step begins. `moves`: training calls move the statistics at once.
  void Begin(bool moves);
  // One training call. Replacement buffers move at once.
  void Move(const Call& call);
  // An evaluation pass of the training program reads the layer's statistics.
  // Errors: FailedPrecondition if they are not those of the weights now.
  absl::Status Read(size_t layer);
  // What happened in the step, ascending by layer.
  // Errors: FailedPrecondition if the program has written statistics that the
  //   server does not take under this policy.
  absl::StatusOr<std::vector<LayerChanges>> Close();
  // The step became part of a version, and so did what was captured before it.
  void Committed();

 private:
  struct Layer {
    Place place;
    // Contents of the buffers unless the program has written them.
    LayerStatistics last;
    // Statistics of the version; absent before the first.
    std::optional<LayerStatistics> version;
    // Written between two steps.
    std::optional<LayerStatistics> captured;
    LayerChanges changes;
  };

  // Contents of the buffers of a place.
  LayerStatistics ReadFrom(const Place& place, size_t channels) const;
  static bool Holds(const Place& place, const LayerStatistics& values);
  static void Put(const LayerStatistics& values, const Place& place);
  // Records what the program has written since the last call, at `place`, which
  // may be a copy of the layer's buffers.
  void NoteWrite(Layer& layer, const Place& place, size_t channels);

  const std::vector<BatchNormSpec> specs_;
  std::vector<Layer> layers_;
  bool moves_ = false;
  // The version has statistics.
  bool known_ = true;
};

}  // namespace cohort
