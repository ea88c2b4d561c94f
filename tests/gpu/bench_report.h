#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

// The table of the bench and its verdict. Needs no device, so that its
// arithmetic can be tested.
namespace cohort::kernels::cuda {

// The share of a device copy's bandwidth that the batch-norm kernels must reach
// on activations of 64 MB and more.
inline constexpr double kGoalShare = 0.9;

struct Measurement {
  // Such as "forward+relu".
  std::string work;
  // Such as "bfloat16 channels_last [64, 256, 56, 56]".
  std::string tensor;
  // The minimum number of bytes that the work moves.
  int64_t floor_bytes = 0;
  double seconds = 0;
  // If false, the line is shown but not judged.
  bool has_goal = true;
};

struct Report {
  // Bytes read and written a second.
  double copy_bandwidth = 0;
  std::vector<Measurement> measurements;

  double ShareOf(const Measurement& m) const {
    return static_cast<double>(m.floor_bytes) / m.seconds / copy_bandwidth;
  }
  bool Fails(const Measurement& m) const {
    // Written so that a NaN fails.
    return m.has_goal && !(ShareOf(m) >= kGoalShare);
  }
  int64_t goals() const {
    int64_t count = 0;
    for (const Measurement& m : measurements) count += m.has_goal ? 1 : 0;
    return count;
  }
  int64_t failures() const {
    int64_t count = 0;
    for (const Measurement& m : measurements) count += Fails(m) ? 1 : 0;
    return count;
  }
  // A run without judged lines does not pass.
  bool Passes() const { return goals() > 0 && failures() == 0; }
};

inline std::string Verdict(const Report& report) {
  const std::string goals = std::to_string(report.goals());
  if (report.goals() == 0) return "FAIL: nothing was judged";
  if (report.Passes()) {
    return "PASS: all " + goals + " goals of 90 % of a device copy are met";
  }
  return "FAIL: " + std::to_string(report.failures()) + " of " + goals +
         " goals of 90 % of a device copy are missed";
}

inline void PrintTable(const Report& report, std::FILE* out) {
  std::fprintf(out, "device copy: %.0f GB/s read and written\n\n",
               report.copy_bandwidth * 1e-9);
  std::fprintf(out, "%-22s %-46s %9s %9s %7s %s\n", "work", "tensor", "us",
               "GB/s", "share", "goal");
  for (const Measurement& m : report.measurements) {
    std::fprintf(out, "%-22s %-46s %9.1f %9.0f %6.1f%% %s\n", m.work.c_str(),
                 m.tensor.c_str(), m.seconds * 1e6,
                 static_cast<double>(m.floor_bytes) / m.seconds * 1e-9,
                 report.ShareOf(m) * 100,
                 !m.has_goal ? "-" : (report.Fails(m) ? "MISSED" : "met"));
  }
}

}  // namespace cohort::kernels::cuda
