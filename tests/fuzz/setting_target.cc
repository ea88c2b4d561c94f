#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

// The input of `cohortctl policy set`: lines name=value.
void RunSetting(absl::string_view input) {
  Reader reader(input);
  CoordinatorOptions options;
  for (int i = 0; i < 8 && !reader.empty(); ++i) {
    const absl::string_view line = reader.Until('\n');
    const size_t equals = line.find('=');
    const absl::string_view name = line.substr(0, equals);
    const absl::string_view value =
        equals == absl::string_view::npos ? "" : line.substr(equals + 1);
    const CoordinatorOptions before = options;
    const absl::Status set = SetSetting(name, value, options);
    RequireCode(set, {absl::StatusCode::kInvalidArgument});
    ChangeText(before, options);
    COHORT_CHECK(set.ok() || before == options,
                 "a refused setting has changed something");
  }
  RequireCode(CheckSettingLimits(options),
              {absl::StatusCode::kInvalidArgument});
  const absl::Status valid = Validate(options);
  RequireCode(valid, {absl::StatusCode::kInvalidArgument});
  // The settings of a checkpoint are read back unchanged.
  CoordinatorOptions again;
  for (const auto& [name, value] : SettingsOf(options)) {
    const absl::Status set = SetSetting(name, value, again);
    COHORT_CHECK(set.ok(), set.ToString());
  }
  COHORT_CHECK(Difference(options, again).empty(), ChangeText(options, again));
}

std::vector<std::string> SettingSeeds() {
  std::vector<std::string> seeds;
  for (const auto& [name, value] : SettingsOf(CoordinatorOptions())) {
    seeds.push_back(absl::StrCat(name, "=", value));
  }
  seeds.push_back("aggregation=async\nstaleness=drop\nmax_staleness=3");
  seeds.push_back("optimizer=adamw\nlearning_rate=1e-3\nlr_at=10,20:0.1");
  seeds.push_back("lease=1.5s\nstep_deadline=inf\non_worker_loss=continue");
  return seeds;
}

}  // namespace

Target SettingTarget() {
  return {.name = "setting",
          .run = RunSetting,
          .seeds = SettingSeeds,
          .input_bytes_max = 256};
}

}  // namespace cohort::fuzz
