#include "server/core/settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/assignment.h"
#include "common/flags/flag_table.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  const char* value;
  const char* wanted;
};

TEST(SettingsTest, ReadingAllBackGivesEqualOptions) {
  CoordinatorOptions options;
  options.workers = 7;
  options.policy = {
      .aggregation = AggregationKind::kBounded,
      .lead_max = 9,
      .staleness = {.rule = StalenessRule::kScale,
                    .versions_free = 3,
                    .compensation = 0.1 / 3},
      .normalization = NormalizationKind::kLocal,
      .normalization_group = 3,
      .statistics = {StatisticsKind::kChief, StatisticsKind::kAsync}};
  options.optimizer.learning_rate = 1e-7 / 3;
  options.optimizer.kind = OptimizerKind::kLars;
  options.optimizer.schedule = ScheduleKind::kStep;
  options.optimizer.step_epochs = {1.0 / 3, 60, 80};
  options.optimizer.no_decay = {"fc.*", "*.bias"};
  options.optimizer.freeze = {"layer4.*", "conv2.weight[:,:,29,13]"};
  options.lease = absl::Milliseconds(1500);
  options.on_worker_loss = OnWorkerLoss::kContinue;
  options.policy.global_batch = 96;
  options.policy.shares = {.automatic = true, .weights = {3, 1}};
  CoordinatorOptions read;
  ExpectOk(SetSettings(SettingsOf(options), read));
  EXPECT_EQ(read, options);
  EXPECT_EQ(SettingsOf(read), SettingsOf(options));
}

TEST(SettingsTest, DefaultsOfFlagsAreThoseOfTheOptions) {
  CoordinatorOptions options;
  options.workers = 0;
  options.optimizer.learning_rate = 0;
  for (const std::string& name : SettingNames()) {
    const std::string& value = FindFlag(ServerFlagTable(), name)->default_text;
    EXPECT_TRUE(SetSetting(name, value, options).ok()) << name << " " << value;
  }
  EXPECT_EQ(SettingsOf(options), SettingsOf({}));
  EXPECT_TRUE(CheckSettingLimits({}).ok());
}

TEST(SettingsTest, ValuesOutsideTheLimitsOfTheirFlagsAreRefused) {
  for (const Case& c : {Case{"workers", "0", "1 to 4096"},
                        Case{"learning_rate", "0", "above 0, up to 1000"},
                        Case{"momentum", "1", "in [0, 1)"},
                        Case{"staleness_free", "-1", "auto, or 0 or more"},
                        Case{"lease", "0", "above 0"}}) {
    CoordinatorOptions options;
    ASSERT_TRUE(SetSetting(c.name, c.value, options).ok()) << c.name;
    const absl::Status status = CheckSettingLimits(options);
    EXPECT_EQ(status.message(), absl::StrCat("--", c.name, ": got ", c.value,
                                             ", want ", c.wanted));
    EXPECT_EQ(Validate(options), status);
  }
}

// Those that are neither the first nor the default.
TEST(SettingsTest, EnumeratorsHaveTheirOwnWords) {
  CoordinatorOptions options;
  options.policy = {.aggregation = AggregationKind::kBounded,
                    .staleness = {.rule = StalenessRule::kScale},
                    .normalization = NormalizationKind::kGlobal,
                    .statistics = {StatisticsKind::kChief},
                    .wire = ElementType::kBFloat16};
  options.optimizer.schedule = ScheduleKind::kStep;
  options.on_worker_loss = OnWorkerLoss::kContinue;
  EXPECT_EQ(ChangeText({}, options),
            "aggregation sync -> bounded, bn_statistics auto -> chief, "
            "normalization auto -> global, on_worker_loss wait -> continue, "
            "schedule cosine -> step, staleness keep -> scale, wire float32 -> "
            "bf16");
  EXPECT_EQ(StatisticsName(StatisticsKind::kBatch), kBatchStatistics);
  EXPECT_EQ(StatisticsKindOf("after"), StatisticsKind::kAfter);
  EXPECT_EQ(StatisticsKindOf("average"), StatisticsKind::kAverage);
  EXPECT_EQ(StatisticsKindOf("never"), std::nullopt);
}

TEST(SettingsTest, ADifferenceHasOnlyWhatChangedAndAllOfIt) {
  CoordinatorOptions before;
  CoordinatorOptions after;
  EXPECT_TRUE(Difference(before, after).empty());
  EXPECT_EQ(ChangeText(before, after), "");
  // Not a setting.
  after.seed = 9;
  after.workers = 8;
  after.workers_min = 2;
  after.optimizer.schedule = ScheduleKind::kConstant;
  EXPECT_EQ(Difference(before, after),
            (SettingValues{{"schedule", "constant"}, {"workers", "2:8"}}));
  EXPECT_EQ(ChangeText(before, after),
            "schedule cosine -> constant, workers 2 -> 2:8");
}

TEST(SettingsTest, ACopyTakesWhatActsAtOnceOrTheRest) {
  CoordinatorOptions from{.workers = 8, .workers_min = 2, .seed = 9};
  from.lease = absl::Seconds(3);
  CoordinatorOptions to;
  CopySettings(from, /*at_once=*/true, to);
  EXPECT_EQ(Difference({}, to), (SettingValues{{"lease", "3s"}}));
  CopySettings(from, /*at_once=*/false, to);
  EXPECT_TRUE(Difference(from, to).empty());
  EXPECT_EQ(to.seed, CoordinatorOptions().seed);
}

TEST(SettingsTest, UnknownNameListsTheKnownOnes) {
  CoordinatorOptions options;
  const absl::Status status = SetSetting("agregation", "sync", options);
  EXPECT_EQ(status.code(), kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--agregation"), HasSubstr("aggregation,")));
}

TEST(SettingsTest, BadValueIsNamedAndChangesNothing) {
  for (const Case& c :
       {Case{"aggregation", "sometimes", "one of sync, bounded, async"},
        Case{"min_pushes", "two", "a whole number"},
        Case{"learning_rate", "nan", "a number"},
        Case{"global_batch", "all", "sum or a whole number"},
        Case{"global_batch", "0", "1 or more"},
        Case{"shares", "1,0", "whole numbers from 1 to 1048576"},
        Case{"shares", "1,", "none, auto"},
        Case{"shares", "auto,1", "none, auto"},
        Case{"shares", "", "none, auto"},
        Case{"staleness_free", "-", "auto or a whole number"},
        Case{"compensation_adaptive", "maybe", "true or false"},
        Case{"lease", "10", "a duration such as 10s"},
        Case{"bn_statistics", "sync,never", "auto, or a list of sync"}}) {
    CoordinatorOptions options;
    const absl::Status status = SetSetting(c.name, c.value, options);
    EXPECT_EQ(status.code(), kInvalidArgument) << c.name;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(absl::StrCat("--", c.name)),
              HasSubstr(absl::StrCat("'", c.value, "'")), HasSubstr(c.wanted)));
    EXPECT_EQ(options, CoordinatorOptions());
  }
}

TEST(SettingsTest, SharesAreWeightsOrAuto) {
  for (const char* text : {"none", "auto", "1,3", "auto:1,3"}) {
    CoordinatorOptions options;
    ExpectOk(SetSetting("shares", text, options));
    EXPECT_EQ(SettingText("shares", options), text);
  }
}

TEST(SettingsTest, ListsMayHaveBlanksAndMayBeEmpty) {
  CoordinatorOptions options;
  ASSERT_TRUE(SetSetting("freeze", " a[0, 1] ; b.* ", options).ok());
  EXPECT_THAT(options.optimizer.freeze, ElementsAre("a[0, 1]", "b.*"));
  ASSERT_TRUE(SetSetting("step_epochs", "30, 60", options).ok());
  EXPECT_THAT(options.optimizer.step_epochs, ElementsAre(30, 60));
  for (const char* empty : {"none", "", " "}) {
    ASSERT_TRUE(SetSetting("freeze", empty, options).ok());
    EXPECT_TRUE(options.optimizer.freeze.empty());
  }
  EXPECT_EQ(SettingsOf(options).at("freeze"), "none");
  EXPECT_THAT(SetSetting("step_epochs", "30,x", options),
              IsError(kInvalidArgument, "--step_epochs: got '30,x'"));
  EXPECT_FALSE(SetSetting("no_decay", "a,,b", options).ok());
}

}  // namespace
}  // namespace cohort
