#include "worker/train/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

ModelLayout Layout() {
  return {.parameters = {
              {.name = "body.conv.weight", .shape = {4}},
              {.name = "body.bn.bias", .shape = {4}, .decay_exempt = true},
              {.name = "head.fc.weight", .shape = {4}},
              {.name = "head.fc.bias", .shape = {4}, .decay_exempt = true}}};
}

ModelLayout Grouped(const std::string& text) {
  ModelLayout layout = Layout();
  const auto groups = ParseGroups(text);
  EXPECT_TRUE(groups.ok()) << groups.status();
  ExpectOk(ApplyGroups(*groups, layout));
  return layout;
}

TEST(ParameterGroupsTest, SetsFactorsOfMatchingParameters) {
  const ModelLayout layout = Grouped("head.*:lr=10,decay=0.5");
  EXPECT_EQ(layout.parameters[0], Layout().parameters[0]);
  EXPECT_EQ(layout.parameters[1], Layout().parameters[1]);
  for (size_t k : {2u, 3u}) {
    EXPECT_EQ(layout.parameters[k].rate_multiplier, 10);
    EXPECT_EQ(layout.parameters[k].decay_multiplier, 0.5);
    // Also the bias, which does not decay by default.
    EXPECT_FALSE(layout.parameters[k].decay_exempt);
  }
}

TEST(ParameterGroupsTest, DecayOfZeroExemptsAndTheLastMatchApplies) {
  const ModelLayout layout =
      Grouped(" head.*:lr=10,decay=2 ; *.bias:decay=0 ;head.fc.weight: lr=3");
  EXPECT_EQ(layout.parameters[2].rate_multiplier, 3);
  EXPECT_EQ(layout.parameters[2].decay_multiplier, 2);
  EXPECT_TRUE(layout.parameters[3].decay_exempt);
  EXPECT_EQ(layout.parameters[3].decay_multiplier, 1);
  EXPECT_EQ(layout.parameters[3].rate_multiplier, 10);
}

TEST(ParameterGroupsTest, NothingChangesNothing) {
  EXPECT_EQ(Grouped("").parameters, Layout().parameters);
  EXPECT_EQ(Grouped(" ; ").parameters, Layout().parameters);
}

TEST(ParameterGroupsTest, NamesWhatItCannotRead) {
  for (const char* text :
       {"head.*", ":lr=1", "a:", "a:lr", "a:lr=", "a:lr=x", "a:lr=-1",
        "a:lr=nan", "a:decay=inf", "a:rate=2", "a:lr=1,lr=2", "a:lr=1,"}) {
    const auto groups = ParseGroups(text);
    EXPECT_TRUE(absl::IsInvalidArgument(groups.status())) << text;
    EXPECT_THAT(std::string(groups.status().message()),
                HasSubstr("--groups: got '"));
  }
}

TEST(ParameterGroupsTest, APatternWithoutAMatchIsNamedWithTheNearest) {
  ModelLayout layout = Layout();
  EXPECT_THAT(ApplyGroups({{.pattern = "haed.fc.bias", .rate = 2}}, layout),
              IsError(kFailedPrecondition, "names are head.fc.bias"));
}

}  // namespace
}  // namespace cohort
