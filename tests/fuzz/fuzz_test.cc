// The fuzz targets over their seeds, over inputs that once failed, and over a
// few thousand mutations, for compilers without libFuzzer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

std::vector<Target> Targets() {
  return {CheckpointTarget(),  ConvertTarget(),  CoreTarget(),
#ifdef COHORT_FUZZ_WORKER
          DatasetTarget(),     ImageTarget(),
#endif
          FlagTarget(),        FrameTarget(),    HttpTarget(),
          IdentityTarget(),    NameTarget(),     PemTarget(),
          SafetensorsTarget(), ScenarioTarget(), SettingTarget(),
          TextTarget()};
}

// Inputs that once failed, by file name.
std::vector<std::string> Regressions(absl::string_view target) {
  const char* root = std::getenv("COHORT_SOURCE_DIR");
  const std::filesystem::path folder =
      std::filesystem::path(root == nullptr ? "." : root) / "tests" / "fuzz" /
      "regressions" / Text(target);
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file),
                        std::istreambuf_iterator<char>());
  }
  return inputs;
}

// A few bytes replaced, removed, repeated, or taken from another input.
std::string Mutated(const std::vector<std::string>& inputs,
                    SplitMix64& random) {
  const auto pick = [&] {
    return inputs[static_cast<size_t>(random.Below(inputs.size()))];
  };
  std::string input = pick();
  for (uint64_t i = 0; i <= random.Below(4); ++i) {
    const auto at = static_cast<size_t>(random.Below(input.size() + 1));
    const auto length = static_cast<size_t>(1 + random.Below(8));
    switch (random.Below(5)) {
      case 0:
        input.insert(at, 1, static_cast<char>(random.Below(256)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random.Below(256));
        break;
      case 2:
        if (at < input.size()) input[at] ^= 1 << random.Below(8);
        break;
      case 3:
        input.erase(at, length);
        break;
      default: {
        const std::string other = pick();
        const auto from = static_cast<size_t>(random.Below(other.size() + 1));
        input.insert(at, other.substr(from, 4 * length));
      }
    }
  }
  return input;
}

class FuzzTest : public testing::TestWithParam<Target> {};

TEST_P(FuzzTest, KeepsItsPropertiesOnSeedsAndOldFaults) {
  const Target target = GetParam();
  const std::vector<std::string> seeds = target.seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) target.run(seed);
  for (const std::string& input : Regressions(target.name)) target.run(input);
  target.run("");
}

// An input that fails here is found again by its number.
TEST_P(FuzzTest, KeepsItsPropertiesOnMutations) {
  const Target target = GetParam();
  const std::vector<std::string> seeds = target.seeds();
  for (int number = 0; number < target.mutations; ++number) {
    SplitMix64 random(MixSeed(1, static_cast<uint64_t>(number)));
    SCOPED_TRACE(absl::StrCat(target.name, ", mutation ", number));
    std::string input = Mutated(seeds, random);
    if (input.size() > static_cast<size_t>(target.input_bytes_max)) {
      input.resize(static_cast<size_t>(target.input_bytes_max));
    }
    target.run(input);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, testing::ValuesIn(Targets()),
                         [](const testing::TestParamInfo<Target>& info) {
                           return Text(info.param.name);
                         });

}  // namespace
}  // namespace cohort::fuzz
