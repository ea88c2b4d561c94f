#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Time and memory of the bench. Errors end the program: it has nothing to save.
namespace cohort::kernels::cuda {

inline void Expect(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               cudaGetErrorString(error));
  std::exit(2);
}

inline void Expect(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(2);
}

// Device memory, freed with this object.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    Expect(cudaMalloc(&memory_, bytes),
           "memory of " + std::to_string(bytes) + " bytes");
  }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* get() const { return memory_; }
  double* doubles() const { return static_cast<double*>(memory_); }
  int64_t bytes() const { return bytes_; }

  // Repeats `pattern` over all of it.
  void Fill(const void* pattern, int64_t pattern_bytes) const {
    for (int64_t at = 0; at < bytes_; at += pattern_bytes) {
      Expect(cudaMemcpy(static_cast<char*>(memory_) + at, pattern,
                        std::min(pattern_bytes, bytes_ - at),
                        cudaMemcpyHostToDevice),
             "filling memory");
    }
  }

 private:
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// Median seconds of work(i) on the device, with i cycling through `sets`. All
// calls are queued before the first begins, so launch times are hidden as in a
// training step.
inline double MedianSeconds(cudaStream_t stream, int32_t rounds, int32_t sets,
                            const std::function<void(int32_t)>& work) {
  for (int32_t i = 0; i < sets; ++i) work(i);
  std::vector<cudaEvent_t> marks(rounds + 1);
  for (cudaEvent_t& mark : marks) Expect(cudaEventCreate(&mark), "an event");
  Expect(cudaEventRecord(marks[0], stream), "an event");
  for (int32_t i = 0; i < rounds; ++i) {
    work(i % sets);
    Expect(cudaEventRecord(marks[i + 1], stream), "an event");
  }
  Expect(cudaStreamSynchronize(stream), "the work");
  std::vector<double> seconds(rounds);
  for (int32_t i = 0; i < rounds; ++i) {
    float milliseconds = 0;
    Expect(cudaEventElapsedTime(&milliseconds, marks[i], marks[i + 1]),
           "an event");
    seconds[i] = milliseconds * 1e-3;
  }
  for (cudaEvent_t& mark : marks) cudaEventDestroy(mark);
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2,
                   seconds.end());
  return seconds[rounds / 2];
}

}  // namespace cohort::kernels::cuda
