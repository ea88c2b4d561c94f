#include "server/rpc/change_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

TEST(ChangeWaitsTest, AnswersWithTheNewsOrWhenACallIsDue) {
  ChangeWaits waits;
  std::vector<std::string> answers;
  bool cancelled = false;
  const auto add = [&](int number, absl::Duration due) {
    waits.Add(
        {.change = {.policy_epoch = 2, .values = {{"lease", "3s"}}},
         .due = due,
         .is_cancelled = [&, number] { return number == 1 && cancelled; },
         .done =
             [&, number](const PolicyView&, const auto& outcome) {
               answers.push_back(absl::StrCat(
                   number, outcome.status().message(),
                   outcome.ok() && outcome->has_value() ? "in force" : ""));
             }});
  };
  const absl::Duration time = absl::Seconds(1);
  for (int number : {0, 1, 2}) add(number, (number + 1) * 10 * time);
  PolicyView policy{.pending = {{"lease", "3s"}}};
  waits.Check(policy, 9 * time);
  EXPECT_FALSE(waits.IsDue(9 * time));
  EXPECT_TRUE(waits.IsDue(10 * time));
  waits.Check(policy, 10 * time);
  cancelled = true;
  EXPECT_TRUE(waits.IsDue(10 * time));
  waits.Check(policy, 10 * time);
  policy = {.history = {{.policy_epoch = 2, .changed = {{"lease", "3s"}}}}};
  waits.Check(policy, 10 * time);
  waits.Check(policy, 99 * time);
  EXPECT_THAT(answers, testing::ElementsAre("0", "1cancelled", "2in force"));
  // One call too many is answered at once.
  policy = {.pending = {{"lease", "3s"}}};
  for (int i = 0; i <= 64; ++i) add(i + 3, 99 * time);
  waits.Check(policy, time);
  EXPECT_EQ(answers.back(), "67");
  EXPECT_EQ(answers.size(), 4u);
}

}  // namespace
}  // namespace cohort
