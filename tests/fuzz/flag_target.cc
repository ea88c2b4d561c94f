#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/flags/flag_table.h"
#include "tests/fuzz/target.h"

// A flag of each type.
ABSL_FLAG(int32_t, fuzz_count, 1, "a whole number");
ABSL_FLAG(double, fuzz_rate, 0.5, "a number");
ABSL_FLAG(bool, fuzz_switch, false, "a switch");
ABSL_FLAG(absl::Duration, fuzz_wait, absl::Seconds(1), "a duration");
ABSL_FLAG(std::string, fuzz_text, "", "a text");

namespace cohort::fuzz {
namespace {

void Reset() {
  absl::SetFlag(&FLAGS_fuzz_count, 1);
  absl::SetFlag(&FLAGS_fuzz_rate, 0.5);
  absl::SetFlag(&FLAGS_fuzz_switch, false);
  absl::SetFlag(&FLAGS_fuzz_wait, absl::Seconds(1));
  absl::SetFlag(&FLAGS_fuzz_text, "");
}

void CheckCommandLine(Reader& reader) {
  // Without a text, so that a program started as "" is tried, too.
  std::vector<std::string> words = {"program"};
  while (!reader.empty() && words.size() < 12) {
    words.push_back(Text(reader.Until('\n')));
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  std::set<std::string> given;
  const absl::StatusOr<HelpRequest> help =
      SetFlags(absl::MakeConstSpan(arguments), &given);
  RequireCode(help.status(), {absl::StatusCode::kNotFound,
                              absl::StatusCode::kFailedPrecondition,
                              absl::StatusCode::kInvalidArgument});
  if (help.ok()) {
    for (const std::string& name : given) {
      COHORT_CHECK(!name.empty() && name.find('=') == std::string::npos, name);
    }
  } else {
    const ExitCode code = ExitCodeOf(help.status());
    COHORT_CHECK(code == kExitUsage || code == kExitConfig, "another exit");
  }
  Reset();
}

// A value of a flag of the table, against the flag's limits.
void CheckValue(const FlagTable& table, Reader& reader) {
  const FlagInfo& flag = table[reader.Byte() % table.size()];
  const absl::string_view value = reader.Rest();
  const absl::Status fits = CheckLimits(flag, value, "--flag");
  RequireCode(fits, {absl::StatusCode::kInvalidArgument});
  COHORT_CHECK(fits.ok() == flag.limits.Contains(value), "two answers");
  COHORT_CHECK(FindFlag(table, flag.name) == &flag, flag.name);
  FindFlag(table, value);
  IsForWorkersOnly(value);
  NearestWord(value, {"workers", "listen"});
}

void RunFlag(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return CheckCommandLine(reader);
    case 1:
      return CheckValue(ServerFlagTable(), reader);
    default:
      return CheckValue(WorkerFlagTable(), reader);
  }
}

std::vector<std::string> FlagSeeds() {
  const std::string words(1, '\0');
  std::vector<std::string> seeds = {
      words + "--fuzz_count=3\n--fuzz_rate\n1e-3\n--nofuzz_switch",
      words + "--fuzz_wait=1h5.5s\n--fuzz_text==\n--help=run", words + "-h",
      words + "--fuzz_cuont=3", words + "stray\n--\n"};
  char table = 1;
  for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
    for (size_t i = 0; i < flags->size() && i < 256; ++i) {
      seeds.push_back(std::string{table, static_cast<char>(i)} +
                      (*flags)[i].default_text);
    }
    ++table;
  }
  return seeds;
}

}  // namespace

Target FlagTarget() {
  return {.name = "flag",
          .run = RunFlag,
          .seeds = FlagSeeds,
          .input_bytes_max = 200};
}

}  // namespace cohort::fuzz
