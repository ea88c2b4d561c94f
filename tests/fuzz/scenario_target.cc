#include <string>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/sim/scenario.h"
#include "tests/sim/simulation.h"

namespace cohort::fuzz {
namespace {

constexpr size_t kFaultsMax = 12;
constexpr int32_t kFaultKinds = 9;

absl::Duration TimeOf(Reader& reader) {
  // To the tenth of a millisecond, since what matters is what comes first.
  return absl::Microseconds(100) * (reader.Byte() | reader.Byte() << 8);
}

// A whole simulated run whose faults are the input's, each at a time of its
// own, where the seeds of tests/sim draw them.
void RunScenario(absl::string_view input) {
  Reader reader(input);
  const int32_t number =
      (reader.Byte() | reader.Byte() << 8) % sim::kRunSpecCount;
  const uint8_t extras = reader.Byte();
  sim::Scenario scenario = sim::MakeUndisturbed(
      number, {.own_data = extras % 2 != 0,
               .few_steps = extras / 2 % 2 != 0,
               .states = static_cast<sim::FrontEndStates>(extras / 4 % 3),
               .averages = extras / 16 % 2 != 0});
  scenario.seed = reader.Byte();
  if (extras / 32 % 2 != 0) scenario.run.coordinator.moments_inline_max = 1;
  scenario.in_order = extras / 64 % 2 == 0;
  scenario.duplicates = reader.Below(4) * 0.1;
  const auto workers = scenario.run.coordinator.workers;
  while (!reader.empty() && scenario.faults.size() < kFaultsMax) {
    sim::Fault fault{
        .kind = static_cast<sim::FaultKind>(reader.Below(kFaultKinds))};
    fault.at = TimeOf(reader);
    const uint8_t who = reader.Byte();
    fault.rank = Rank(who % workers);
    fault.replaced = who / 16 % 2 != 0;
    fault.lasts = absl::Milliseconds(1) + TimeOf(reader);
    if (fault.kind == sim::FaultKind::kHang) {
      scenario.run.coordinator.step_deadline = absl::Seconds(3);
    }
    scenario.faults.push_back(fault);
  }
  const sim::Outcome outcome = sim::Simulation(scenario).Run();
  COHORT_CHECK(outcome.failure.empty(),
               absl::StrCat(outcome.failure, "\n", sim::Describe(scenario)));
}

std::vector<std::string> ScenarioSeeds() {
  std::vector<std::string> seeds;
  for (int32_t kind = 0; kind < kFaultKinds; ++kind) {
    const int32_t number = 37 * kind;
    seeds.push_back(
        {static_cast<char>(number & 0xff), static_cast<char>(number >> 8),
         static_cast<char>(kind * 9), '\x01', '\x01', static_cast<char>(kind),
         '\x60', '\x01', '\x01', '\x40', '\x1f'});
  }
  return seeds;
}

}  // namespace

Target ScenarioTarget() {
  return {.name = "scenario",
          .run = RunScenario,
          .seeds = ScenarioSeeds,
          .input_bytes_max = 80,
          .mutations = 100};
}

}  // namespace cohort::fuzz
