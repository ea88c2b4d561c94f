#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "kernels/cuda/checks.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/pack_kernel.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/stream_plan.h"
#include "kernels/cuda/tuning.h"
#include "tests/gpu/emulated_gpu.h"
#include "tests/gpu/machine.h"

namespace cohort::kernels::cuda {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

constexpr int64_t kAlignment = 256;

Memory Aligned(int64_t bytes) {
  return Memory(
      std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
}

class EmulatedMachine final : public Machine {
 public:
  EmulatedMachine(int32_t multiprocessors, Order order)
      : multiprocessors_(multiprocessors),
        order_(order),
        fibers_(std::max(kRunThreads, kPeriodThreads)),
        workspace_(Aligned(kWorkspaceBytes)) {
    std::memset(workspace_.get(), 0, kWorkspaceBytes);
  }

  void* Allocate(int64_t bytes) override {
    memory_.push_back(Aligned(bytes));
    return memory_.back().get();
  }
  void CopyIn(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void CopyOut(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void Clear() override { memory_.clear(); }

  absl::Status Moments(const MomentsArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(
        const CheckedCall call,
        CheckCall(args.shape, args.type, {{"x", args.x}}, {}, queue()));
    COHORT_RETURN_IF_ERROR(CheckWorkspace(call.plan, queue()));
    EmulatedLauncher launcher = NewLauncher();
    DispatchMoments(args, call.plan, launcher);
    return absl::OkStatus();
  }

  absl::Status Normalize(const NormalizeArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(
        const CheckedCall call,
        CheckCall(args.shape, args.type,
                  {{"x", args.x}, {"add", args.add, false}, {"y", args.y}}, {},
                  queue()));
    EmulatedLauncher launcher = NewLauncher();
    DispatchNormalize(args, call.plan, launcher);
    return absl::OkStatus();
  }

  absl::Status BackwardReduce(const BackwardReduceArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(const CheckedCall call,
                            CheckCall(args.shape, args.type,
                                      {{"x", args.x},
                                       {"dy", args.dy},
                                       {"y", args.y, false},
                                       {"dz", args.dz, false}},
                                      {}, queue()));
    COHORT_RETURN_IF_ERROR(CheckWorkspace(call.plan, queue()));
    EmulatedLauncher launcher = NewLauncher();
    DispatchBackwardReduce(args, call.plan, launcher);
    return absl::OkStatus();
  }

  absl::Status BackwardElementwise(
      const BackwardElementwiseArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(
        const CheckedCall call,
        CheckCall(args.shape, args.type,
                  {{"x", args.x}, {"dy", args.dy}, {"dx", args.dx}}, {},
                  queue()));
    EmulatedLauncher launcher = NewLauncher();
    DispatchBackwardElementwise(args, call.plan, launcher);
    return absl::OkStatus();
  }

  absl::Status Pack(absl::Span<const PackSegment> segments,
                    float* packed) override {
    return Copy<true>(segments, packed);
  }
  absl::Status Unpack(const float* packed,
                      absl::Span<const PackSegment> segments) override {
    return Copy<false>(segments, const_cast<float*>(packed));
  }

  bool WorkspaceIsReady() override {
    const auto* counters = static_cast<const uint32_t*>(workspace_.get());
    return std::all_of(counters, counters + kCounters,
                       [](uint32_t counter) { return counter == 0; });
  }

  int64_t elements_max() const override { return 12000; }

 private:
  static constexpr int64_t kWorkspaceBytes = 16 << 20;

  Queue queue() const {
    return {.workspace = workspace_.get(),
            .workspace_bytes = kWorkspaceBytes,
            .multiprocessors = multiprocessors_};
  }

  EmulatedLauncher NewLauncher() {
    auto* bytes = static_cast<char*>(workspace_.get());
    return {
        .fibers = &fibers_,
        .exchange = {.counters = reinterpret_cast<uint32_t*>(bytes),
                     .pairs = reinterpret_cast<Pair*>(bytes + kCounterBytes)},
        .order = order_};
  }

  template <bool kPack>
  absl::Status Copy(absl::Span<const PackSegment> segments, float* packed) {
    COHORT_ASSIGN_OR_RETURN(const std::vector<PackLaunch> launches,
                            PlanPack(segments, packed));
    EmulatedLauncher launcher = NewLauncher();
    for (const PackLaunch& launch : launches) {
      launcher.Launch<PackKernel<kPack>>(launch.args, launch.plan,
                                         launch.plan.blocks);
    }
    return absl::OkStatus();
  }

  const int32_t multiprocessors_;
  const Order order_;
  FiberBlock fibers_;
  Memory workspace_;
  std::vector<Memory> memory_;
};

}  // namespace

std::unique_ptr<Machine> NewEmulatedMachine(int32_t multiprocessors,
                                            Order order) {
  return std::make_unique<EmulatedMachine>(multiprocessors, order);
}

}  // namespace cohort::kernels::cuda
