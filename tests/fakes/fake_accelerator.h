#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "worker/device/accelerator.h"

namespace cohort {

// An accelerator whose memory is the CPU's. Its compute lane finishes at once,
// as LibTorch's operators on the CPU do. Its copy lane does nothing until a
// caller waits for it, so memory that is read or released too early gives wrong
// results. Batch norm is the CPU backend's, so results equal the CPU's bit for
// bit.
//
// Thread safety: none.
class FakeAccelerator final : public Accelerator {
 public:
  // How often a caller waited for the device.
  int32_t awaits = 0;
  // Jobs of the copy lane, and how often that lane was made to follow the
  // compute lane.
  int32_t copies = 0;
  int32_t packs = 0;
  int32_t copies_follow_compute = 0;
  // Limit of the bytes that AllocatePinned hands out, and the bytes so far.
  int64_t pinned_bytes_max = int64_t{1} << 40;
  int64_t pinned_bytes = 0;
  int32_t allocations = 0;
  int64_t free_bytes = int64_t{1} << 40;
  // If true, HasHappened runs the copy lane's jobs up to the event.
  bool asking_helps = false;
  // If not OK, kernels return it.
  absl::Status kernel_status;

  absl::string_view name() const override { return "fake:0"; }
  absl::StatusOr<int64_t> FreeBytes() override { return free_bytes; }

  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    if (pinned_bytes + bytes > pinned_bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("got ", bytes, " bytes to pin, want at most ",
                       pinned_bytes_max - pinned_bytes));
    }
    pinned_bytes += bytes;
    ++allocations;
    auto memory = std::make_unique<std::byte[]>(static_cast<size_t>(bytes));
    void* const at = memory.get();
    pinned_.push_back(std::move(memory));
    return at;
  }
  void FreePinned(void* memory) override {
    std::erase_if(pinned_, [memory](const std::unique_ptr<std::byte[]>& held) {
      return held.get() == memory;
    });
  }

  absl::StatusOr<std::unique_ptr<LaneEvent>> NewEvent() override {
    return std::make_unique<Event>();
  }
  absl::Status Record(Lane lane, LaneEvent& event) override {
    Of(event).after = lane == Lane::kCopy ? submitted_ : 0;
    return absl::OkStatus();
  }
  absl::Status WaitFor(Lane lane, LaneEvent& event) override {
    if (lane == Lane::kCopy) {
      ++copies_follow_compute;
    } else {
      RunUpTo(Of(event).after);
    }
    return absl::OkStatus();
  }
  absl::Status Await(LaneEvent& event) override {
    ++awaits;
    RunUpTo(Of(event).after);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> HasHappened(LaneEvent& event) override {
    if (asking_helps) RunUpTo(Of(event).after);
    return done_ >= Of(event).after;
  }

  absl::Status Copy(Lane lane, void* to, const void* from,
                    int64_t bytes) override {
    if (lane == Lane::kCopy) ++copies;
    Do(lane, [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    return absl::OkStatus();
  }
  absl::Status Pack(Lane lane,
                    absl::Span<const kernels::cuda::PackSegment> segments,
                    float* packed) override {
    ++packs;
    for (const kernels::cuda::PackSegment& s : segments) {
      Do(lane, [=] {
        std::memcpy(packed + s.offset, s.tensor,
                    static_cast<size_t>(s.count) * sizeof(float));
      });
    }
    return absl::OkStatus();
  }
  absl::Status Unpack(
      Lane lane, const float* packed,
      absl::Span<const kernels::cuda::PackSegment> segments) override {
    ++packs;
    for (const kernels::cuda::PackSegment& s : segments) {
      Do(lane, [=] {
        std::memcpy(s.tensor, packed + s.offset,
                    static_cast<size_t>(s.count) * sizeof(float));
      });
    }
    return absl::OkStatus();
  }

  absl::Status Moments(const kernels::MomentsArgs& args) override {
    if (kernel_status.ok()) kernels::CpuBackend().Moments(args);
    return kernel_status;
  }
  absl::Status Normalize(const kernels::NormalizeArgs& args) override {
    if (kernel_status.ok()) kernels::CpuBackend().Normalize(args);
    return kernel_status;
  }
  absl::Status BackwardReduce(
      const kernels::BackwardReduceArgs& args) override {
    if (kernel_status.ok()) kernels::CpuBackend().BackwardReduce(args);
    return kernel_status;
  }
  absl::Status BackwardElementwise(
      const kernels::BackwardElementwiseArgs& args) override {
    if (kernel_status.ok()) kernels::CpuBackend().BackwardElementwise(args);
    return kernel_status;
  }

 private:
  // Happens once this many jobs of the copy lane are done.
  struct Event final : LaneEvent {
    int64_t after = 0;
  };

  static Event& Of(LaneEvent& event) { return static_cast<Event&>(event); }

  void Do(Lane lane, std::function<void()> job) {
    if (lane == Lane::kCompute) return job();
    jobs_.push_back(std::move(job));
    ++submitted_;
  }

  void RunUpTo(int64_t count) {
    while (done_ < count) {
      jobs_.front()();
      jobs_.pop_front();
      ++done_;
    }
  }

  std::vector<std::unique_ptr<std::byte[]>> pinned_;
  std::deque<std::function<void()>> jobs_;
  int64_t submitted_ = 0;
  int64_t done_ = 0;
};

}  // namespace cohort
