#pragma once

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/backward_reduce_op.h"
#include "kernels/cuda/elementwise_ops.h"
#include "kernels/cuda/moments_op.h"
#include "kernels/cuda/period_kernels.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/run_kernels.h"
#include "kernels/data_type.h"

// Which kernel a call needs. `Launcher` has
//   template <typename Kernel>
//   void Launch(const typename Kernel::Args&, const typename Kernel::ThePlan&,
//               int64_t blocks);
// One of the four functions is instantiated in each CUDA source, which keeps
// them compiling side by side, and all of them in the tests.
namespace cohort::kernels::cuda {

// Calls f.template operator()<T, kWidth>() for a type of tensors and the width
// of an access to them. Requires a type of at most four bytes.
template <typename F>
void WithTypeAndWidth(DataType type, int32_t width, F f) {
  switch (type) {
    case DataType::kFloat16:
      return width == 1 ? f.template operator()<Float16, 1>()
                        : f.template operator()<Float16, 8>();
    case DataType::kBFloat16:
      return width == 1 ? f.template operator()<BFloat16, 1>()
                        : f.template operator()<BFloat16, 8>();
    case DataType::kFloat32:
    case DataType::kFloat64:
      break;
  }
  return width == 1 ? f.template operator()<float, 1>()
                    : f.template operator()<float, 4>();
}

// `OfRuns` and `OfPeriods` are the same operation with one channel a thread
// and with one a column.
template <typename OfRuns, typename OfPeriods, typename Args, typename Launcher>
void LaunchReduce(const Args& args, const Plan& plan, Launcher& launcher) {
  if (plan.runs) {
    launcher.template Launch<RunReduce<OfRuns>>(args, plan.run, plan.blocks());
  } else {
    launcher.template Launch<PeriodReduce<OfPeriods>>(args, plan.period,
                                                      plan.blocks());
  }
}

template <typename OfRuns, typename OfPeriods, typename Args, typename Launcher>
void LaunchElementwise(const Args& args, const Plan& plan, Launcher& launcher) {
  if (plan.runs) {
    launcher.template Launch<RunElementwise<OfRuns>>(args, plan.run,
                                                     plan.blocks());
  } else {
    launcher.template Launch<PeriodElementwise<OfPeriods>>(args, plan.period,
                                                           plan.blocks());
  }
}

inline int32_t WidthOf(const Plan& plan) {
  return plan.runs ? plan.run.width : plan.period.width;
}

template <typename Launcher>
void DispatchMoments(const MomentsArgs& args, const Plan& plan,
                     Launcher& launcher) {
  WithTypeAndWidth(args.type, WidthOf(plan), [&]<typename T, int kWidth>() {
    LaunchReduce<MomentsOp<T, kWidth, 1>, MomentsOp<T, kWidth, kWidth>>(
        args, plan, launcher);
  });
}

template <Mask kMask, typename Launcher>
void DispatchBackwardReduceMasked(const BackwardReduceArgs& args,
                                  const Plan& plan, Launcher& launcher) {
  WithTypeAndWidth(args.type, WidthOf(plan), [&]<typename T, int kWidth>() {
    LaunchReduce<BackwardReduceOp<T, kWidth, 1, kMask>,
                 BackwardReduceOp<T, kWidth, kWidth, kMask>>(args, plan,
                                                             launcher);
  });
}

template <typename Launcher>
void DispatchBackwardReduce(const BackwardReduceArgs& args, const Plan& plan,
                            Launcher& launcher) {
  if (!args.relu) {
    DispatchBackwardReduceMasked<Mask::kNone>(args, plan, launcher);
  } else if (args.y == nullptr) {
    DispatchBackwardReduceMasked<Mask::kFromX>(args, plan, launcher);
  } else {
    DispatchBackwardReduceMasked<Mask::kFromY>(args, plan, launcher);
  }
}

template <bool kAdd, typename Launcher>
void DispatchNormalizeAdding(const NormalizeArgs& args, const Plan& plan,
                             Launcher& launcher) {
  WithTypeAndWidth(args.type, WidthOf(plan), [&]<typename T, int kWidth>() {
    LaunchElementwise<NormalizeOp<T, kWidth, 1, kAdd>,
                      NormalizeOp<T, kWidth, kWidth, kAdd>>(args, plan,
                                                            launcher);
  });
}

template <typename Launcher>
void DispatchNormalize(const NormalizeArgs& args, const Plan& plan,
                       Launcher& launcher) {
  if (args.add != nullptr) {
    DispatchNormalizeAdding<true>(args, plan, launcher);
  } else {
    DispatchNormalizeAdding<false>(args, plan, launcher);
  }
}

template <bool kRelu, bool kFrozen, typename Launcher>
void DispatchBackwardElementwiseAs(const BackwardElementwiseArgs& args,
                                   const Plan& plan, Launcher& launcher) {
  WithTypeAndWidth(args.type, WidthOf(plan), [&]<typename T, int kWidth>() {
    LaunchElementwise<BackwardElementwiseOp<T, kWidth, 1, kRelu, kFrozen>,
                      BackwardElementwiseOp<T, kWidth, kWidth, kRelu, kFrozen>>(
        args, plan, launcher);
  });
}

template <typename Launcher>
void DispatchBackwardElementwise(const BackwardElementwiseArgs& args,
                                 const Plan& plan, Launcher& launcher) {
  const bool frozen = args.sum_dy == nullptr;
  if (args.relu && frozen) {
    DispatchBackwardElementwiseAs<true, true>(args, plan, launcher);
  } else if (args.relu) {
    DispatchBackwardElementwiseAs<true, false>(args, plan, launcher);
  } else if (frozen) {
    DispatchBackwardElementwiseAs<false, true>(args, plan, launcher);
  } else {
    DispatchBackwardElementwiseAs<false, false>(args, plan, launcher);
  }
}

}  // namespace cohort::kernels::cuda
