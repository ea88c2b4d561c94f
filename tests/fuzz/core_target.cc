#include <string>
#include <vector>

#include "tests/fuzz/core_driver.h"
#include "tests/fuzz/target.h"
#include "tests/sim/scenario.h"

namespace cohort::fuzz {
namespace {

void RunCore(absl::string_view input) {
  Reader reader(input);
  CoreDriver(reader).Run();
}

// An undisturbed run: all ranks join and register, and then each sends one
// message after the other, and every fold ends.
std::string Undisturbed(int32_t number) {
  std::string input = {static_cast<char>(number & 0xff),
                       static_cast<char>(number >> 8), '\0'};
  const int32_t workers = sim::MakeRunSpec(number).coordinator.workers;
  for (char rank = 0; rank < workers; ++rank) input += {'\x07', rank};
  for (int i = 0; i < 60; ++i) {
    input.push_back('\x03');
    // As many bytes as a round of folds reads.
    input += std::string("\x06") + std::string(3, '\0');
  }
  return input;
}

std::vector<std::string> CoreSeeds() {
  std::vector<std::string> seeds;
  for (int32_t number = 0; number < sim::kRunSpecCount; number += 7) {
    seeds.push_back(Undisturbed(number));
  }
  // With an eviction, a restart, an intruder, a change and a silence.
  for (const absl::string_view event :
       {absl::string_view("\x0e\x08"), absl::string_view("\x0f\x00", 2),
        absl::string_view("\x0c\x01\x03\x00\x02\x02\x02", 7),
        absl::string_view("\x0e\x13"), absl::string_view("\x0a\x0c")}) {
    std::string seed = Undisturbed(5);
    seed.insert(seed.size() / 2, event.data(), event.size());
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace

Target CoreTarget() {
  return {.name = "core",
          .run = RunCore,
          .seeds = CoreSeeds,
          .input_bytes_max = 600,
          .mutations = 300};
}

}  // namespace cohort::fuzz
