#include "common/flags/flag_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/flags/flag_page.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(FlagTableTest, EveryRowIsWhole) {
  for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
    std::set<absl::string_view> names;
    for (const FlagInfo& flag : *flags) {
      EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " is twice";
      EXPECT_TRUE(absl::EndsWith(flag.help, ".")) << flag.name;
      EXPECT_FALSE(flag.heading.empty()) << flag.name;
      EXPECT_TRUE(flag.limits.Contains(flag.default_text))
          << flag.name << " " << flag.default_text;
    }
  }
}

// If a subject came back later, it would have two tables.
TEST(FlagTableTest, RowsOfASubjectStandTogether) {
  for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
    size_t changes = 0;
    absl::string_view last;
    for (const FlagInfo& flag : *flags) {
      changes += flag.subject == last ? 0 : 1;
      last = flag.subject;
    }
    EXPECT_EQ(changes, SubjectsOf(*flags).size());
  }
}

TEST(FlagTableTest, DefaultsAreWrittenAsOnACommandLine) {
  const auto text = [](absl::string_view name) {
    return FindFlag(ServerFlagTable(), name)->default_text;
  };
  EXPECT_EQ(text("workers"), "2");
  EXPECT_EQ(text("weight_decay"), "0.0005");
  EXPECT_EQ(text("lease"), "10s");
  EXPECT_EQ(text("resume"), "false");
  EXPECT_EQ(text("aggregation"), "sync");
}

TEST(FlagTableTest, SwitchesAreFoundByTheirNegativeForm) {
  EXPECT_EQ(FindFlag(ServerFlagTable(), "noresume")->name, "resume");
  EXPECT_EQ(FindFlag(ServerFlagTable(), "noworkers"), nullptr);
  EXPECT_EQ(FindFlag(ServerFlagTable(), "no_decay")->name, "no_decay");
}

TEST(FlagTableTest, FlagsOfBothProgramsAreNotForWorkersOnly) {
  EXPECT_TRUE(IsForWorkersOnly("batch_size"));
  EXPECT_TRUE(IsForWorkersOnly("nochannels_last"));
  for (const char* name : {"workers", "trace", "log_level", "no_such_flag"}) {
    EXPECT_FALSE(IsForWorkersOnly(name)) << name;
  }
}

TEST(FlagLimitsTest, BoundsAreInclusiveButForAboveAndBelow) {
  EXPECT_TRUE(Between(1, 4).Contains("4"));
  EXPECT_FALSE(Between(1, 4).Contains("5"));
  EXPECT_FALSE(Above(0).Contains("0"));
  EXPECT_TRUE(Below(0, 1).Contains("0"));
  EXPECT_FALSE(Below(0, 1).Contains("1"));
  EXPECT_FALSE(AtLeast(0).Contains("nan"));
  EXPECT_FALSE(Between(0, 9).Contains("inf"));
}

TEST(FlagLimitsTest, DurationsAreInSeconds) {
  EXPECT_TRUE(Above(0).Contains("500ms"));
  EXPECT_FALSE(Above(0).Contains("-1m"));
  EXPECT_TRUE(AtLeast(1).Contains("inf"));
}

TEST(FlagLimitsTest, WordsStandAloneOrBesideBounds) {
  EXPECT_TRUE(OneOf({"a", "b"}).Contains("b"));
  EXPECT_FALSE(OneOf({"a", "b"}).Contains("a,b"));
  EXPECT_TRUE(AtLeast(0).Or("auto").Contains("auto"));
  EXPECT_FALSE(AtLeast(0).Or("auto").Contains("-1"));
  EXPECT_TRUE(ListOf({"a", "b"}).Or("none").Contains("b,a"));
  EXPECT_TRUE(ListOf({"a", "b"}).Or("none").Contains("none"));
  EXPECT_FALSE(ListOf({"a", "b"}).Or("none").Contains("a,none"));
  EXPECT_TRUE(AnyValue().Contains("anything at all"));
}

TEST(FlagLimitsTest, TextsSayWhatIsTaken) {
  EXPECT_EQ(Between(1, 4096).ToString(), "1 to 4096");
  EXPECT_EQ(Between(1, 1 << 20).ToString(), "1 to 1048576");
  EXPECT_EQ(AtLeast(0).Or("auto").ToString(), "auto, or 0 or more");
  EXPECT_EQ(AboveUpTo(0, 9).ToString(), "above 0, up to 9");
  EXPECT_EQ(Below(0, 1).ToString(), "in [0, 1)");
  EXPECT_EQ(OneOf({"a", "b"}).ToString(), "one of a, b");
  EXPECT_EQ(ListOf({"a", "b"}).Or("none").ToString(),
            "none, or a list of a, b");
  EXPECT_EQ(AnyValue().ToString(), "");
}

TEST(FlagLimitsTest, AnErrorNamesFlagValueAndLimits) {
  const FlagInfo& workers = *FindFlag(ServerFlagTable(), "workers");
  EXPECT_TRUE(CheckLimits(workers, "1", "--workers").ok());
  EXPECT_THAT(CheckLimits(workers, "0", "--workers"),
              IsError(kInvalidArgument, "--workers: got 0, want 1 to 4096"));
  const FlagInfo& loss = *FindFlag(ServerFlagTable(), "on_worker_loss");
  EXPECT_THAT(CheckLimits(loss, "cry", "--on_worker_loss"),
              IsError(kInvalidArgument, "--on_worker_loss: got 'cry'"));
}

TEST(FlagPageTest, PagesOfTheTreeAreThoseOfTheTable) {
  for (const FlagPage& page : {ServerFlagPage(), WorkerFlagPage()}) {
    std::ifstream file(
        absl::StrCat(std::getenv("COHORT_SOURCE_DIR"), "/", page.path));
    std::ostringstream kept;
    kept << file.rdbuf();
    EXPECT_TRUE(kept.str() == page.markdown)
        << page.path << " is old: build cohort-flag-pages and run it with the "
        << "source directory";
  }
}

TEST(FlagPageTest, MarksWhatIsTypedAndKeepsTablesWhole) {
  const FlagTable flags = {{.name = "freeze",
                            .type = "text",
                            .default_text = "none",
                            .subject = "a",
                            .heading = "A",
                            .help = "Such as layer4.*, or (--other)."}};
  EXPECT_EQ(FlagTablesMarkdown(flags),
            "\n## A\n\n| flag | default | values | meaning |\n"
            "|---|---|---|---|\n"
            "| `--freeze` | `none` | text | Such as `layer4.*`, or "
            "(`--other`). |\n");
}

}  // namespace
}  // namespace cohort
