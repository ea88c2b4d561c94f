// The backend's face, and its name on every instruction set.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_backend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

const std::string& NameHere() {
  // Never destroyed: a log line at exit may still want it.
  static const std::string& name =
      *new std::string(absl::StrCat("cpu/", hwy::TargetName(HWY_TARGET)));
  return name;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels {
namespace cpu {

HWY_EXPORT(NameHere);

absl::string_view Name() { return HWY_DYNAMIC_DISPATCH(NameHere)(); }

}  // namespace cpu

namespace {

class HighwayBackend final : public Backend {
 public:
  absl::string_view name() const override { return cpu::Name(); }

  explicit HighwayBackend(ParallelFor parallel_for)
      : parallel_for_(std::move(parallel_for)) {}

  void Moments(const MomentsArgs& args) const override {
    cpu::Moments(args, parallel_for_);
  }

  void Normalize(const NormalizeArgs& args) const override {
    cpu::Normalize(args, parallel_for_);
  }

  void BackwardReduce(const BackwardReduceArgs& args) const override {
    cpu::BackwardReduce(args, parallel_for_);
  }

  void BackwardElementwise(const BackwardElementwiseArgs& args) const override {
    cpu::BackwardElementwise(args, parallel_for_);
  }

  bool FoldGradient(const GradientRun& run) const override {
    return cpu::FoldGradient(run);
  }

  double SumOfSquares(absl::Span<const float> x) const override {
    return cpu::SumOfSquares(x);
  }

  bool Update(const RuleStep& step, const GradientRun& gradient,
              const UpdateRun& run) const override {
    return cpu::Update(step, gradient, run);
  }

  bool Compensate(const CompensationStep& step,
                  const CompensationRun& run) const override {
    return cpu::Compensate(step, run);
  }

  void RoundChange(const ChangeRun& run) const override {
    cpu::RoundChange(run);
  }

 private:
  const ParallelFor parallel_for_;
};

}  // namespace

const Backend& CpuBackend() {
  static const HighwayBackend& backend = *new HighwayBackend(nullptr);
  return backend;
}

std::unique_ptr<Backend> NewCpuBackend(ParallelFor parallel_for) {
  return std::make_unique<HighwayBackend>(std::move(parallel_for));
}

}  // namespace cohort::kernels
#endif  // HWY_ONCE
