#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace cohort::fuzz {

// A piece of the project that reads bytes from outside. README.md lists the
// targets, and says how to add one.
struct Target {
  absl::string_view name;
  // Reads `input`, which may be anything. Aborts if a property does not hold.
  // The same input does the same every time.
  void (*run)(absl::string_view input) = nullptr;
  // Inputs to start from, made by the project's own encoders.
  std::vector<std::string> (*seeds)() = nullptr;
  int32_t input_bytes_max = 4096;
  // Inputs that the normal suite makes from the seeds.
  int32_t mutations = 2000;
};

Target CheckpointTarget();
Target ConvertTarget();
Target CoreTarget();
Target DatasetTarget();
Target FlagTarget();
Target FrameTarget();
Target HttpTarget();
Target IdentityTarget();
Target ImageTarget();
Target NameTarget();
Target PemTarget();
Target SafetensorsTarget();
Target ScenarioTarget();
Target SettingTarget();
Target TextTarget();

// Fails unless `status` is OK or has one of the codes that the function's
// comment names.
inline void RequireCode(const absl::Status& status,
                        std::initializer_list<absl::StatusCode> documented) {
  if (status.ok()) return;
  for (const absl::StatusCode code : documented) {
    if (status.code() != code) continue;
    COHORT_CHECK(!status.message().empty(), "an error without a text");
    return;
  }
  COHORT_CHECK(false, absl::StrCat("undocumented error: ", status.ToString()));
}

// Takes numbers from the front of an input; zeros after its end.
class Reader {
 public:
  explicit Reader(absl::string_view input) : left_(input) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  // Below `end`, which is at most 256.
  int32_t Below(int32_t end) { return Byte() % end; }
  // Up to `bytes` bytes.
  absl::string_view Take(size_t bytes) {
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(taken.size());
    return taken;
  }
  // Up to the next `end`, which is taken, too; or all that is left.
  absl::string_view Until(char end) {
    const size_t at = left_.find(end);
    const absl::string_view taken = left_.substr(0, at);
    left_.remove_prefix(at == absl::string_view::npos ? left_.size() : at + 1);
    return taken;
  }
  absl::string_view Rest() { return Take(left_.size()); }

 private:
  absl::string_view left_;
};

inline std::string Text(absl::string_view view) {
  return std::string(view.data(), view.size());
}

}  // namespace cohort::fuzz
