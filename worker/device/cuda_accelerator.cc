#include "worker/device/cuda_accelerator.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/errors.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/stream_plan.h"

namespace cohort {
namespace {

namespace cuda = kernels::cuda;

// Large enough that the workspace seldom grows.
constexpr int64_t kWorkspaceBytesMin = int64_t{1} << 20;
constexpr int64_t kFloatBytes = 4;

class CudaEvent final : public LaneEvent {
 public:
  CudaEvent(int32_t device, CUevent_st* event)
      : device_(device), event_(event) {}
  ~CudaEvent() override {
    // Threads that have none would begin to use device 0.
    cuda::SetDevice(device_);
    cuda::DestroyEvent(event_);
  }
  CUevent_st* get() const { return event_; }

 private:
  const int32_t device_;
  CUevent_st* const event_;
};

CUevent_st* EventOf(LaneEvent& event) {
  return static_cast<CudaEvent&>(event).get();
}

// The client would take Unavailable for a broken connection and try again.
absl::Status Final(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::InternalError(status.message());
}

class CudaAccelerator final : public Accelerator {
 public:
  CudaAccelerator(int32_t device, const cuda::Device& facts,
                  std::function<CUstream_st*()> compute_stream,
                  CUstream_st* copy_stream)
      : device_(device),
        multiprocessors_(facts.multiprocessors),
        name_(absl::StrCat("cuda:", device, " (", facts.name, ")")),
        compute_stream_(std::move(compute_stream)),
        copy_stream_(copy_stream) {}

  ~CudaAccelerator() override {
    cuda::SetDevice(device_);
    for (void* memory : workspaces_) cuda::FreeOnDevice(memory);
    for (void* memory : buffers_) cuda::FreeOnDevice(memory);
    cuda::DestroyStream(copy_stream_);
  }

  absl::string_view name() const override { return name_; }

  absl::StatusOr<int64_t> FreeBytes() override {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
    COHORT_RETURN_IF_ERROR(Use(
        [&] { return cuda::CountMemory(free_bytes, total_bytes); }, "memory"));
    return free_bytes;
  }

  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    COHORT_RETURN_IF_ERROR(
        Use([&] { return cuda::AllocatePinned(bytes, &memory); },
            "page-locked memory"));
    return memory;
  }
  void FreePinned(void* memory) override {
    cuda::SetDevice(device_);
    cuda::FreePinned(memory);
  }

  absl::StatusOr<std::unique_ptr<LaneEvent>> NewEvent() override {
    CUevent_st* event = nullptr;
    COHORT_RETURN_IF_ERROR(
        Use([&] { return cuda::NewEvent(&event); }, "an event"));
    return std::make_unique<CudaEvent>(device_, event);
  }
  absl::Status Record(Lane lane, LaneEvent& event) override {
    return Use(
        [&] { return cuda::RecordEvent(EventOf(event), StreamOf(lane)); },
        "recording an event");
  }
  absl::Status WaitFor(Lane lane, LaneEvent& event) override {
    return Use(
        [&] { return cuda::WaitForEvent(StreamOf(lane), EventOf(event)); },
        "waiting for an event");
  }
  absl::Status Await(LaneEvent& event) override {
    return Use([&] { return cuda::AwaitEvent(EventOf(event)); },
               "work before an event");
  }
  absl::StatusOr<bool> HasHappened(LaneEvent& event) override {
    bool happened = false;
    COHORT_RETURN_IF_ERROR(
        Use([&] { return cuda::QueryEvent(EventOf(event), happened); },
            "work before an event"));
    return happened;
  }

  absl::Status Copy(Lane lane, void* to, const void* from,
                    int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return Use(
        [&] { return cuda::CopyInStream(to, from, bytes, StreamOf(lane)); },
        "a copy");
  }
  // A kernel on pinned memory would hold its multiprocessors for as long as the
  // bus takes. So kernels pack into memory of the device, and copies, which
  // need no multiprocessor, go between the two.
  absl::Status Pack(Lane lane, absl::Span<const cuda::PackSegment> segments,
                    float* packed) override {
    const std::vector<cuda::PackedRange> ranges = cuda::PackedRanges(segments);
    COHORT_ASSIGN_OR_RETURN(float* const buffer, BufferFor(lane, ranges));
    COHORT_RETURN_IF_ERROR(Final(cuda::Pack(segments, buffer, QueueOf(lane))));
    for (const cuda::PackedRange& range : ranges) {
      COHORT_RETURN_IF_ERROR(Copy(lane, packed + range.offset,
                                  buffer + range.offset,
                                  range.count * kFloatBytes));
    }
    return absl::OkStatus();
  }
  absl::Status Unpack(Lane lane, const float* packed,
                      absl::Span<const cuda::PackSegment> segments) override {
    const std::vector<cuda::PackedRange> ranges = cuda::PackedRanges(segments);
    COHORT_ASSIGN_OR_RETURN(float* const buffer, BufferFor(lane, ranges));
    for (const cuda::PackedRange& range : ranges) {
      COHORT_RETURN_IF_ERROR(Copy(lane, buffer + range.offset,
                                  packed + range.offset,
                                  range.count * kFloatBytes));
    }
    return Final(cuda::Unpack(buffer, segments, QueueOf(lane)));
  }

  absl::Status Moments(const kernels::MomentsArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(const cuda::Queue queue,
                            SummingQueue(args.shape, args.type));
    return Final(cuda::Moments(args, queue));
  }
  absl::Status Normalize(const kernels::NormalizeArgs& args) override {
    COHORT_RETURN_IF_ERROR(Enter());
    return Final(cuda::Normalize(args, QueueOf(Lane::kCompute)));
  }
  absl::Status BackwardReduce(
      const kernels::BackwardReduceArgs& args) override {
    COHORT_ASSIGN_OR_RETURN(const cuda::Queue queue,
                            SummingQueue(args.shape, args.type));
    return Final(cuda::BackwardReduce(args, queue));
  }
  absl::Status BackwardElementwise(
      const kernels::BackwardElementwiseArgs& args) override {
    COHORT_RETURN_IF_ERROR(Enter());
    return Final(cuda::BackwardElementwise(args, QueueOf(Lane::kCompute)));
  }

 private:
  CUstream_st* StreamOf(Lane lane) const {
    return lane == Lane::kCopy ? copy_stream_ : compute_stream_();
  }

  cuda::Queue QueueOf(Lane lane) const {
    return {.stream = StreamOf(lane), .multiprocessors = multiprocessors_};
  }

  // Autograd calls from its threads, whose current device may be
  // another.
  absl::Status Enter() const {
    return Final(cuda::StatusOf(cuda::SetDevice(device_), name_));
  }

  template <typename Call>
  absl::Status Use(Call call, absl::string_view what) const {
    COHORT_RETURN_IF_ERROR(Enter());
    return Final(cuda::StatusOf(call(), absl::StrCat(name_, ": ", what)));
  }

  // A queue with a large enough workspace. A smaller workspace is kept, because
  // queued work may be using it, and freeing it would wait for the device.
  absl::StatusOr<cuda::Queue> SummingQueue(const kernels::BatchShape& shape,
                                           kernels::DataType type) {
    COHORT_RETURN_IF_ERROR(Enter());
    cuda::Queue queue = QueueOf(Lane::kCompute);
    const int64_t wanted =
        cuda::BatchNormWorkspaceBytes(shape, type, multiprocessors_);
    if (wanted > workspace_bytes_) {
      const int64_t bytes =
          std::max({wanted, 2 * workspace_bytes_, kWorkspaceBytesMin});
      void* memory = nullptr;
      COHORT_RETURN_IF_ERROR(
          Use([&] { return cuda::AllocateOnDevice(bytes, &memory); },
              absl::StrCat(bytes, " bytes of workspace for batch norm")));
      workspaces_.push_back(memory);
      COHORT_RETURN_IF_ERROR(
          Use([&] { return cuda::FillWithZeros(memory, bytes, queue.stream); },
              "the workspace"));
      workspace_bytes_ = bytes;
    }
    queue.workspace = workspaces_.back();
    queue.workspace_bytes = workspace_bytes_;
    return queue;
  }

  // Memory of the device that holds the elements of `ranges`, at their places.
  // The lane's work uses it in order, so one buffer a lane is enough; a smaller
  // one is kept, as workspaces are.
  absl::StatusOr<float*> BufferFor(
      Lane lane, const std::vector<cuda::PackedRange>& ranges) {
    COHORT_RETURN_IF_ERROR(Enter());
    if (ranges.empty()) return nullptr;
    Buffer& buffer = lane == Lane::kCopy ? copy_buffer_ : compute_buffer_;
    const int64_t wanted =
        (ranges.back().offset + ranges.back().count) * kFloatBytes;
    if (wanted > buffer.bytes) {
      const int64_t bytes =
          std::max({wanted, 2 * buffer.bytes, kWorkspaceBytesMin});
      void* memory = nullptr;
      COHORT_RETURN_IF_ERROR(
          Use([&] { return cuda::AllocateOnDevice(bytes, &memory); },
              absl::StrCat(bytes, " bytes to pack gradients and weights in")));
      buffers_.push_back(memory);
      buffer = {.memory = static_cast<float*>(memory), .bytes = bytes};
    }
    return buffer.memory;
  }

  struct Buffer {
    float* memory = nullptr;
    int64_t bytes = 0;
  };

  // Fixed after construction.
  const int32_t device_;
  const int32_t multiprocessors_;
  const std::string name_;
  const std::function<CUstream_st*()> compute_stream_;
  CUstream_st* const copy_stream_;

  // The last one is in use. Accessed only by the thread that computes sums;
  // there is one at a time.
  std::vector<void*> workspaces_;
  int64_t workspace_bytes_ = 0;
  // Accessed only by the thread that fetches gradients and loads weights; there
  // is one at a time, too. All buffers, and those in use.
  std::vector<void*> buffers_;
  Buffer copy_buffer_;
  Buffer compute_buffer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Accelerator>> OpenCudaAccelerator(
    int32_t device, std::function<CUstream_st*()> compute_stream) {
  COHORT_ASSIGN_OR_RETURN(const cuda::Device facts, cuda::OpenDevice(device));
  CUstream_st* copy_stream = nullptr;
  COHORT_RETURN_IF_ERROR(
      Final(cuda::StatusOf(cuda::NewStream(&copy_stream), "a copy stream")));
  return std::make_unique<CudaAccelerator>(
      device, facts, std::move(compute_stream), copy_stream);
}

}  // namespace cohort
