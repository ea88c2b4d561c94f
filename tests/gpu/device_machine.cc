#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/plan.h"
#include "tests/gpu/machine.h"

namespace cohort::kernels::cuda {
namespace {

void Expect(cudaError_t error, absl::string_view what) {
  COHORT_CHECK(error == cudaSuccess,
               absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

class DeviceMachine final : public Machine {
 public:
  explicit DeviceMachine(const Device& device) : device_(device) {
    Expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
           "a stream");
    Expect(cudaMalloc(&workspace_, kWorkspaceBytes), "the workspace");
    Expect(cudaMemset(workspace_, 0, kWorkspaceBytes), "the workspace");
    Expect(cudaDeviceSynchronize(), "the workspace");
  }
  ~DeviceMachine() override {
    Clear();
    cudaFree(workspace_);
    cudaStreamDestroy(stream_);
  }

  void* Allocate(int64_t bytes) override {
    void* memory = nullptr;
    Expect(cudaMalloc(&memory, bytes), absl::StrCat(bytes, " bytes"));
    memory_.push_back(memory);
    return memory;
  }
  void CopyIn(void* to, const void* from, int64_t bytes) override {
    Expect(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy in");
    // A small copy may be in progress, and the kernels' stream does not wait.
    Expect(cudaDeviceSynchronize(), "copy in");
  }
  void CopyOut(void* to, const void* from, int64_t bytes) override {
    Expect(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy out");
  }
  void Clear() override {
    for (void* memory : memory_) cudaFree(memory);
    memory_.clear();
  }

  absl::Status Moments(const MomentsArgs& args) override {
    return Wait(cuda::Moments(args, queue()));
  }
  absl::Status Normalize(const NormalizeArgs& args) override {
    return Wait(cuda::Normalize(args, queue()));
  }
  absl::Status BackwardReduce(const BackwardReduceArgs& args) override {
    return Wait(cuda::BackwardReduce(args, queue()));
  }
  absl::Status BackwardElementwise(
      const BackwardElementwiseArgs& args) override {
    return Wait(cuda::BackwardElementwise(args, queue()));
  }
  absl::Status Pack(absl::Span<const PackSegment> segments,
                    float* packed) override {
    return Wait(cuda::Pack(segments, packed, queue()));
  }
  absl::Status Unpack(const float* packed,
                      absl::Span<const PackSegment> segments) override {
    return Wait(cuda::Unpack(packed, segments, queue()));
  }

  bool WorkspaceIsReady() override {
    std::vector<uint32_t> counters(kCounters);
    CopyOut(counters.data(), workspace_, kCounterBytes);
    for (uint32_t counter : counters) {
      if (counter != 0) return false;
    }
    return true;
  }

  // Fewer if a checker slows every access down.
  int64_t elements_max() const override {
    const char* wanted = std::getenv("COHORT_GPU_TEST_ELEMENTS");
    int64_t elements = 0;
    if (wanted != nullptr && absl::SimpleAtoi(wanted, &elements)) {
      return elements;
    }
    return int64_t{1} << 20;
  }

 private:
  static constexpr int64_t kWorkspaceBytes = 64 << 20;

  Queue queue() const {
    return {.stream = stream_,
            .workspace = workspace_,
            .workspace_bytes = kWorkspaceBytes,
            .multiprocessors = device_.multiprocessors};
  }

  absl::Status Wait(const absl::Status& launched) {
    COHORT_RETURN_IF_ERROR(launched);
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (error == cudaSuccess) return absl::OkStatus();
    return absl::UnavailableError(cudaGetErrorString(error));
  }

  const Device device_;
  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace

std::unique_ptr<Machine> NewDeviceMachine(std::string& why_not) {
  absl::StatusOr<Device> device = OpenDevice(0);
  if (!device.ok()) {
    why_not = std::string(device.status().message());
    return nullptr;
  }
  return std::make_unique<DeviceMachine>(*device);
}

}  // namespace cohort::kernels::cuda
