#pragma once

#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/backend.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort::kernels {

// A backend, and the instruction set that it is held to.
struct BackendCase {
  const Backend* backend = nullptr;
  // A bit of Highway's; 0 where the backend has no choice.
  int64_t instruction_set = 0;
  std::string name;
};

// The reference, and the CPU backend on every instruction set of this machine.
inline std::vector<BackendCase> AllBackends() {
  std::vector<BackendCase> cases = {{&ReferenceBackend(), 0, "reference"}};
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    cases.push_back(
        {&CpuBackend(), target, absl::StrCat("cpu/", hwy::TargetName(target))});
  }
  return cases;
}

// Runs a test body once a backend.
class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam().instruction_set);
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  const Backend& backend() const { return *GetParam().backend; }
};

inline std::string BackendCaseName(
    const testing::TestParamInfo<BackendCase>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace cohort::kernels
