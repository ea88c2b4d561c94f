#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

// The functions behind CpuBackend(), one a method of Backend and with its
// contract. Each picks the best instruction set of this machine when called.
// `parallel_for` may be empty: then the calling thread does all.
namespace cohort::kernels::cpu {

// "cpu/" and the instruction set, such as "cpu/AVX2".
absl::string_view Name();

void Moments(const MomentsArgs& args, const ParallelFor& parallel_for);
void BackwardReduce(const BackwardReduceArgs& args,
                    const ParallelFor& parallel_for);
void Normalize(const NormalizeArgs& args, const ParallelFor& parallel_for);
void BackwardElementwise(const BackwardElementwiseArgs& args,
                         const ParallelFor& parallel_for);
bool FoldGradient(const GradientRun& run);
double SumOfSquares(absl::Span<const float> x);
bool Update(const RuleStep& step, const GradientRun& gradient,
            const UpdateRun& run);
bool Compensate(const CompensationStep& step, const CompensationRun& run);
void RoundChange(const ChangeRun& run);

}  // namespace cohort::kernels::cpu
