#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

// The functions behind CpuBackend(), one a method of Backend and with its
// contract. Each picks the best instruction set of this machine when called.
namespace cohort::kernels::cpu {

// "cpu/" and the instruction set, such as "cpu/AVX2".
absl::string_view Name();

void Moments(const MomentsArgs& args);
void BackwardReduce(const BackwardReduceArgs& args);
void Normalize(const NormalizeArgs& args);
void BackwardElementwise(const BackwardElementwiseArgs& args);
bool FoldSgd(const SgdStep& step, const SgdRun& run);
bool FoldGradient(const GradientRun& run);
double SumOfSquares(absl::Span<const float> x);
void UpdateAdam(const AdamStep& step, const AdamRun& run);
bool Compensate(const CompensationStep& step, const CompensationRun& run);

}  // namespace cohort::kernels::cpu
