#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "worker/session/model_memory.h"

namespace cohort {

// A model in host memory. Gradients are not copied.
class HostModel : public ModelMemory {
 public:
  // The gradient of one parameter, and the owner of its memory. Null: it has
  // none.
  struct ParameterGradient {
    const float* data = nullptr;
    std::shared_ptr<const void> owner;
  };
  using GradientOf = std::function<ParameterGradient(size_t parameter)>;

  // `parameters` are the elements of each in the order of the layout: float32,
  // row-major. They must outlive the model. `gradient_of` is called for the
  // parameters of a partition when it is fetched.
  HostModel(std::vector<absl::Span<float>> parameters, GradientOf gradient_of);

  std::vector<absl::Span<const float>> Values() const;

  absl::Status Fetch(int32_t partition) override;
  absl::StatusOr<std::optional<Gradient>> Take(bool wait) override;
  void Drop() override { fetched_.clear(); }
  absl::Status Load(absl::Span<const ByteRope> weights) override;

 private:
  // Fixed after construction.
  const std::vector<absl::Span<float>> parameters_;
  const GradientOf gradient_of_;

  std::deque<Gradient> fetched_;
};

}  // namespace cohort
