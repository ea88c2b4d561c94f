#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server's status file, reduced to the fields that the verb reads.
nlohmann::json Status(const std::string& name, double written_at) {
  return {{"run_id", absl::StrCat("id-", name)},
          {"run_name", name},
          {"server_unix_us", 1e6 * written_at},
          {"ended", true},
          {"state", "over: all images were trained on"},
          {"version", 1200},
          {"samples", 60000},
          {"samples_total", 60000},
          {"train_loss", 0.25},
          {"measures", {{"not_finite", nullptr}}},
          {"test_accuracy", 0.5},
          {"test_miou", nullptr},
          {"curves",
           {{"train",
             {{{"elapsed_seconds", 30.0}}, {{"elapsed_seconds", 120.0}}}}}},
          {"policy",
           {{"text", "sync"},
            {"settings", {{"aggregation", "sync"}, {"epochs", "1"}}}}}};
}

class RunsVerbTest : public testing::Test {
 protected:
  void Write(const std::string& folder, const std::string& text) {
    std::filesystem::create_directories(dir_.File(folder));
    std::ofstream(dir_.File(absl::StrCat(folder, "/status.json"))) << text;
  }
  CtlResult Run(const std::string& flags = "") {
    return ctl_.RunPlain(absl::StrCat("runs ", dir_.path(), flags));
  }

  const TempDir dir_;
  CtlHarness ctl_;
};

TEST_F(RunsVerbTest, ComparesRunsAndTheSettingsThatDiffer) {
  nlohmann::json async = Status("fast", 2000);
  async["policy"] = {{"text", "async"},
                     {"settings", {{"aggregation", "async"}, {"epochs", "1"}}}};
  async["test_accuracy"] = 0.75;
  async["test_miou"] = 0.625;
  async["samples"] = 30000;
  Write("b", Status("slow", 1000).dump());
  Write("deep/runs/a", async.dump());
  const CtlResult runs = Run();
  EXPECT_EQ(runs.code, 0) << runs.err;
  EXPECT_EQ(runs.out,
            "run   state    steps  train loss  test             time   "
            "images/s  policy\n"
            "slow  done     1200   0.2500      50.0 % accuracy  2 min  500 "
            "      sync\n"
            "fast  stopped  1200   0.2500      62.5 % mIoU      2 min  250 "
            "      async\n"
            "\nSettings that differ\n"
            "setting      slow  fast\n"
            "aggregation  sync  async\n");
}

TEST_F(RunsVerbTest, SortsByTheTestMeasure) {
  nlohmann::json worse = Status("worse", 1000);
  worse["test_accuracy"] = 0.25;
  nlohmann::json none = Status("none", 3000);
  none["test_accuracy"] = nullptr;
  Write("1", none.dump());
  Write("2", worse.dump());
  Write("3", Status("best", 2000).dump());
  const nlohmann::json json =
      nlohmann::json::parse(Run(" --sort=test --json").out);
  ASSERT_EQ(json["runs"].size(), 3);
  EXPECT_EQ(json["runs"][0]["run_name"], "best");
  EXPECT_EQ(json["runs"][0]["elapsed_ms"], 120000);
  EXPECT_EQ(json["runs"][0]["settings"]["aggregation"], "sync");
  EXPECT_EQ(json["runs"][1]["run_name"], "worse");
  EXPECT_EQ(json["runs"][2]["test"], nullptr);
}

TEST_F(RunsVerbTest, NamesDamagedFilesAndShowsTheRest) {
  Write("good", Status("good", 1).dump());
  Write("half", "{\"run\": \"x");
  Write("list", "[]");
  Write("other", "{\"name\": \"of something else\"}");
  Write("deep", std::string(100000, '['));
  const CtlResult runs = Run();
  EXPECT_EQ(runs.code, 1);
  EXPECT_THAT(runs.out, HasSubstr("good  done"));
  for (const char* name : {"half", "list", "other", "deep"}) {
    EXPECT_THAT(runs.err, HasSubstr(absl::StrCat("/", name, "/status.json: ")));
  }
}

TEST_F(RunsVerbTest, ShowsNoControlCharactersOfOthers) {
  nlohmann::json run = Status("x", 1);
  run["run_name"] = "a\x1b[2Jb";
  Write("a", run.dump());
  const CtlResult runs = Run();
  EXPECT_THAT(runs.out, Not(HasSubstr("\x1b")));
}

TEST_F(RunsVerbTest, SaysWhichFoldersItWants) {
  const CtlResult empty = Run();
  EXPECT_EQ(empty.code, 3);
  EXPECT_THAT(empty.err, HasSubstr("contains status.json"));
  EXPECT_THAT(empty.err, HasSubstr("--results_dir"));
  EXPECT_THAT(Run("/none"), PrintsError(3, "no folder"));
  EXPECT_THAT(Run(" --sort=size"),
              PrintsError(3, "want one of time, name, test, speed"));
}

}  // namespace
}  // namespace cohort
