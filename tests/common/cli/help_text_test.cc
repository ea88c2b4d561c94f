#include "common/cli/help_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_split.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const ProgramText kProgram = {
    .name = "tool", .summary = "does it", .examples = {"tool --a"}};

TEST(HelpTextTest, ExamplesComeFirstThenFlagsBySubject) {
  const FlagTable flags = {{.name = "count",
                            .default_text = "3",
                            .limits = Between(1, 9),
                            .change = FlagChange::kAtOnce,
                            .subject = "run",
                            .heading = "The run",
                            .help = "How many."},
                           {.name = "name",
                            .subject = "look",
                            .heading = "Its looks",
                            .help = "What it is called."}};
  const std::string text = OkValue(HelpText(kProgram, flags));
  EXPECT_THAT(text, StartsWith("tool: does it\n\nExamples:\n  tool --a\n\n"));
  EXPECT_THAT(text, HasSubstr("one subject: run,\nlook.\n"));
  EXPECT_THAT(text, HasSubstr("\nThe run (run)\n  --count=3\n"
                              "      How many. (1 to 9; can be changed live)\n"
                              "\nIts looks (look)\n  --name=\n"
                              "      What it is called.\n"));
  EXPECT_THAT(*HelpText(kProgram, flags, "look"), Not(HasSubstr("--count")));
}

TEST(HelpTextTest, LinesOfEveryProgramFitATerminal) {
  for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
    const std::string text = *HelpText(kProgram, *flags);
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

}  // namespace
}  // namespace cohort
