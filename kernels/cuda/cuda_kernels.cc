#include "kernels/cuda/cuda_kernels.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "kernels/cuda/checks.h"
#include "kernels/cuda/errors.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/stream_plan.h"

namespace cohort::kernels::cuda {
namespace {

Exchange ExchangeOf(const Queue& queue) {
  auto* bytes = static_cast<char*>(queue.workspace);
  return {.counters = reinterpret_cast<uint32_t*>(bytes),
          .pairs = reinterpret_cast<Pair*>(bytes + kCounterBytes)};
}

absl::Status ZeroSums(double* first, double* second, int64_t channels,
                      const Queue& queue, absl::string_view what) {
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(double));
  COHORT_RETURN_IF_ERROR(
      StatusOf(FillWithZeros(first, bytes, queue.stream), what));
  return StatusOf(FillWithZeros(second, bytes, queue.stream), what);
}

std::string DeviceName(int32_t device, const DeviceFacts& facts) {
  return absl::StrCat("cuda:", device, " (", facts.name,
                      ", compute capability ", facts.capability / 10, ".",
                      facts.capability % 10, ")");
}

}  // namespace

absl::StatusOr<Device> OpenDevice(int32_t device) {
  int32_t devices = 0;
  const std::string name = absl::StrCat("cuda:", device);
  const int counted = CountDevices(devices);
  if (counted != 0 || devices == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": no GPU here",
                     counted == 0 ? ""
                                  : absl::StrCat(" (", ErrorName(counted), ": ",
                                                 ErrorMeaning(counted), ")"),
                     "; want an NVIDIA driver for CUDA ", CudaVersion() / 1000,
                     ".", CudaVersion() % 1000 / 10,
                     " or newer and a GPU that this process may see "
                     "(CUDA_VISIBLE_DEVICES, a container's --gpus), or run on "
                     "the CPU"));
  }
  if (device < 0 || device >= devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": this machine has ", devices, devices == 1 ? " GPU" : " GPUs",
        ", numbered from 0; want cuda:0",
        devices > 1 ? absl::StrCat(" to cuda:", devices - 1) : ""));
  }
  DeviceFacts facts;
  COHORT_RETURN_IF_ERROR(StatusOf(SetDevice(device), name));
  COHORT_RETURN_IF_ERROR(StatusOf(DescribeDevice(device, facts), name));
  COHORT_RETURN_IF_ERROR(StatusOf(TryCode(), DeviceName(device, facts)));
  return Device{.name = facts.name,
                .multiprocessors = facts.multiprocessors,
                .capability = facts.capability,
                .memory_bytes = facts.memory_bytes};
}

int64_t BatchNormWorkspaceBytes(const BatchShape& shape, DataType type,
                                int32_t multiprocessors) {
  const int32_t element_bytes = type == DataType::kFloat32 ? 4 : 2;
  return WorkspaceBytes(shape, element_bytes, multiprocessors);
}

absl::Status Moments(const MomentsArgs& args, const Queue& queue) {
  COHORT_ASSIGN_OR_RETURN(
      const CheckedCall call,
      CheckCall(args.shape, args.type, {{"x", args.x}},
                {{"mean", args.mean}, {"m2", args.m2}}, queue));
  if (call.empty) {
    return ZeroSums(args.mean, args.m2, args.shape.channels, queue, "Moments");
  }
  COHORT_RETURN_IF_ERROR(CheckWorkspace(call.plan, queue));
  return StatusOf(
      LaunchMoments(args, call.plan, ExchangeOf(queue), queue.stream),
      "Moments");
}

absl::Status Normalize(const NormalizeArgs& args, const Queue& queue) {
  const int64_t bytes = ParameterBytes(args.parameter_type);
  COHORT_ASSIGN_OR_RETURN(
      const CheckedCall call,
      CheckCall(args.shape, args.type,
                {{"x", args.x}, {"add", args.add, false}, {"y", args.y}},
                {{"mean", args.mean},
                 {"invstd", args.invstd},
                 {"gamma", args.gamma, false, bytes},
                 {"beta", args.beta, false, bytes}},
                queue));
  if (call.empty) return absl::OkStatus();
  return StatusOf(LaunchNormalize(args, call.plan, queue.stream), "Normalize");
}

absl::Status BackwardReduce(const BackwardReduceArgs& args,
                            const Queue& queue) {
  const int64_t bytes = ParameterBytes(args.parameter_type);
  const bool recomputes = args.relu && args.y == nullptr;
  // Without relu they are not read, so they do not decide the access.
  const void* y = args.relu ? args.y : nullptr;
  const void* dz = args.relu ? args.dz : nullptr;
  COHORT_ASSIGN_OR_RETURN(
      const CheckedCall call,
      CheckCall(
          args.shape, args.type,
          {{"x", args.x}, {"dy", args.dy}, {"y", y, false}, {"dz", dz, false}},
          {{"mean", args.mean},
           {"invstd", args.invstd, recomputes},
           {"gamma", args.gamma, false, bytes},
           {"beta", args.beta, false, bytes},
           {"sum_dy", args.sum_dy},
           {"sum_dy_xmu", args.sum_dy_xmu}},
          queue));
  if (call.empty) {
    return ZeroSums(args.sum_dy, args.sum_dy_xmu, args.shape.channels, queue,
                    "BackwardReduce");
  }
  COHORT_RETURN_IF_ERROR(CheckWorkspace(call.plan, queue));
  return StatusOf(
      LaunchBackwardReduce(args, call.plan, ExchangeOf(queue), queue.stream),
      "BackwardReduce");
}

absl::Status BackwardElementwise(const BackwardElementwiseArgs& args,
                                 const Queue& queue) {
  const int64_t bytes = ParameterBytes(args.parameter_type);
  const bool frozen = args.sum_dy == nullptr && args.sum_dy_xmu == nullptr;
  if (!frozen && args.total_count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_count: got ", args.total_count,
                     ", want at least 1 with the sums of all members"));
  }
  // Without relu frozen statistics leave x unread.
  const void* x = frozen && !args.relu ? nullptr : args.x;
  COHORT_ASSIGN_OR_RETURN(
      const CheckedCall call,
      CheckCall(
          args.shape, args.type,
          {{"x", x, !frozen || args.relu}, {"dy", args.dy}, {"dx", args.dx}},
          {{"mean", args.mean},
           {"invstd", args.invstd},
           {"gamma", args.gamma, false, bytes},
           {"beta", args.beta, false, bytes},
           {"sum_dy", args.sum_dy, !frozen},
           {"sum_dy_xmu", args.sum_dy_xmu, !frozen}},
          queue));
  if (call.empty) return absl::OkStatus();
  return StatusOf(LaunchBackwardElementwise(args, call.plan, queue.stream),
                  "BackwardElementwise");
}

absl::Status Pack(absl::Span<const PackSegment> segments, float* packed,
                  const Queue& queue) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<PackLaunch> launches,
                          PlanPack(segments, packed));
  for (const PackLaunch& launch : launches) {
    COHORT_RETURN_IF_ERROR(StatusOf(
        LaunchPack(true, launch.args, launch.plan, queue.stream), "Pack"));
  }
  return absl::OkStatus();
}

absl::Status Unpack(const float* packed, absl::Span<const PackSegment> segments,
                    const Queue& queue) {
  // One table serves both directions; this one only reads `packed`.
  COHORT_ASSIGN_OR_RETURN(const std::vector<PackLaunch> launches,
                          PlanPack(segments, const_cast<float*>(packed)));
  for (const PackLaunch& launch : launches) {
    COHORT_RETURN_IF_ERROR(StatusOf(
        LaunchPack(false, launch.args, launch.plan, queue.stream), "Unpack"));
  }
  return absl::OkStatus();
}

}  // namespace cohort::kernels::cuda
