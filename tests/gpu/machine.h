#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/batch_norm_args.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/gpu/emulated_gpu.h"

// Where a test runs the CUDA kernels: on a GPU, or emulated here.
namespace cohort::kernels::cuda {

class Machine {
 public:
  virtual ~Machine() = default;

  // Aligned to 256 bytes. Freed with the machine.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void CopyIn(void* to, const void* from, int64_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, int64_t bytes) = 0;
  // Frees everything.
  virtual void Clear() = 0;

  // The functions of cuda_kernels.h; each returns when its work is done.
  virtual absl::Status Moments(const MomentsArgs& args) = 0;
  virtual absl::Status Normalize(const NormalizeArgs& args) = 0;
  virtual absl::Status BackwardReduce(const BackwardReduceArgs& args) = 0;
  virtual absl::Status BackwardElementwise(
      const BackwardElementwiseArgs& args) = 0;
  virtual absl::Status Pack(absl::Span<const PackSegment> segments,
                            float* packed) = 0;
  virtual absl::Status Unpack(const float* packed,
                              absl::Span<const PackSegment> segments) = 0;

  // True if all counters of the workspace are zero.
  virtual bool WorkspaceIsReady() = 0;
  // Largest number of elements that a test can handle in reasonable time.
  virtual int64_t elements_max() const = 0;
};

std::unique_ptr<Machine> NewEmulatedMachine(int32_t multiprocessors,
                                            Order order);

// Null without a GPU; `why_not` then gives the reason.
std::unique_ptr<Machine> NewDeviceMachine(std::string& why_not);

struct MachineCase {
  std::string name;
  std::function<std::unique_ptr<Machine>(std::string& why_not)> make;
};

inline std::vector<MachineCase> AllMachines() {
  const auto emulated = [](int32_t multiprocessors, Order order) {
    return [=](std::string&) {
      return NewEmulatedMachine(multiprocessors, order);
    };
  };
  return {{"emulated_2_descending", emulated(2, Order::kDescending)},
          {"emulated_7_shuffled", emulated(7, Order::kShuffled)},
          {"device",
           [](std::string& why_not) { return NewDeviceMachine(why_not); }}};
}

// Runs a test body once a machine.
class MachineTest : public testing::TestWithParam<MachineCase> {
 protected:
  void SetUp() override {
    std::string why_not;
    machine_ = GetParam().make(why_not);
    if (machine_ == nullptr) GTEST_SKIP() << why_not;
  }
  void TearDown() override {
    if (machine_ == nullptr) return;
    EXPECT_TRUE(machine_->WorkspaceIsReady());
  }

  Machine& machine() { return *machine_; }

 private:
  std::unique_ptr<Machine> machine_;
};

inline std::string MachineCaseName(
    const testing::TestParamInfo<MachineCase>& info) {
  return info.param.name;
}

// A tensor in a machine's memory, `shift` elements behind a boundary of 16
// bytes, between elements that must not be written.
template <typename T>
class Tensor {
 public:
  Tensor(Machine& machine, const std::vector<T>& values, int32_t shift = 0)
      : machine_(machine),
        count_(static_cast<int64_t>(values.size())),
        before_(kGuard + shift) {
    std::vector<unsigned char> bytes(Bytes(), kGuardByte);
    if (count_ > 0) {
      std::memcpy(bytes.data() + before_ * sizeof(T), values.data(),
                  values.size() * sizeof(T));
    }
    memory_ = static_cast<T*>(machine.Allocate(Bytes()));
    machine.CopyIn(memory_, bytes.data(), Bytes());
  }

  T* get() const { return memory_ + before_; }

  // The elements; fails the test if anything beside them was written.
  std::vector<T> Take() const {
    std::vector<unsigned char> bytes(Bytes());
    machine_.CopyOut(bytes.data(), memory_, Bytes());
    std::vector<T> values(count_);
    const int64_t begin = before_ * sizeof(T);
    const int64_t end = begin + count_ * sizeof(T);
    if (count_ > 0)
      std::memcpy(values.data(), bytes.data() + begin, end - begin);
    bool untouched = true;
    for (int64_t i = 0; i < Bytes(); ++i) {
      if ((i < begin || i >= end) && bytes[i] != kGuardByte) untouched = false;
    }
    EXPECT_TRUE(untouched) << "elements beside the tensor were written";
    return values;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr unsigned char kGuardByte = 0xa5;

  int64_t Bytes() const {
    return static_cast<int64_t>((before_ + count_ + kGuard) * sizeof(T));
  }

  Machine& machine_;
  int64_t count_;
  int64_t before_;
  T* memory_ = nullptr;
};

}  // namespace cohort::kernels::cuda
