#include "server/core/data/shard_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "common/float_buffer.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kShards = 3;

std::vector<Version> Held() { return {Version(4), Version(6)}; }

class ShardCommandsTest : public ::testing::Test {
 protected:
  // A model of four partitions, of which partition p has the weight p.
  static effect::InstallModel Model() {
    auto model = std::make_shared<RegisteredModel>();
    auto snapshot = std::make_shared<ModelSnapshot>();
    for (int p = 0; p < 4; ++p) {
      auto weights = std::make_shared<FloatBuffer>(1);
      *weights->data() = static_cast<float>(p);
      snapshot->weights.push_back(std::move(weights));
    }
    return {.model = std::move(model),
            .snapshot = std::move(snapshot),
            .settings = {{"lease", "2s"}}};
  }

  // The shards that are told something of type T.
  template <typename T>
  std::vector<int32_t> ToldOf(const Effect& effect) {
    std::vector<int32_t> shards;
    for (const ShardCommands::Command& to : commands_.Of(effect, Held)) {
      EXPECT_TRUE(std::holds_alternative<T>(to.command));
      shards.push_back(to.shard);
    }
    return shards;
  }

  ShardCommands commands_{kShards};
};

TEST_F(ShardCommandsTest, WithOneShardNothingIsSaid) {
  ShardCommands alone(1);
  EXPECT_THAT(alone.Of(effect::Commit{.transaction = 1}, Held), IsEmpty());
  EXPECT_THAT(alone.Of(Model(), Held), IsEmpty());
  EXPECT_FALSE(alone.IsElsewhere(effect::SendWeights{.partition = 1}));
}

TEST_F(ShardCommandsTest, EachShardGetsItsPartitionsOfTheModel) {
  const auto commands = commands_.Of(Model(), Held);
  ASSERT_THAT(commands, SizeIs(2));
  for (size_t i = 0; i < commands.size(); ++i) {
    EXPECT_EQ(commands[i].shard, static_cast<int32_t>(i) + 1);
    const auto& install = std::get<shard_command::Install>(commands[i].command);
    EXPECT_THAT(install.snapshot->slots, SizeIs(4));
    for (size_t p = 0; p < 4; ++p) {
      EXPECT_EQ(install.snapshot->weights[p] != nullptr, p % 3 == i + 1);
    }
  }
}

TEST_F(ShardCommandsTest, ACommitSaysWhichVersionsAreStillRead) {
  const auto commands = commands_.Of(
      effect::Commit{.transaction = 9, .version = Version(7)}, Held);
  ASSERT_THAT(commands, SizeIs(2));
  const auto& commit = std::get<shard_command::Commit>(commands[1].command);
  EXPECT_EQ(commit.transaction, 9);
  EXPECT_EQ(commit.version, Version(7));
  EXPECT_THAT(commit.held, ElementsAre(Version(4), Version(6)));
  const auto skips = commands_.Of(
      effect::Abort{.transaction = 9, .skipped = Version(7)}, Held);
  const auto& abort = std::get<shard_command::Abort>(skips[0].command);
  EXPECT_EQ(abort.skipped, Version(7));
  EXPECT_THAT(abort.held, ElementsAre(Version(4), Version(6)));
}

TEST_F(ShardCommandsTest, WhatConcernsOnePartitionGoesToItsOwner) {
  EXPECT_THAT(
      ToldOf<shard_command::Take>(effect::GradientTaken{.partition = 5}),
      ElementsAre(2));
  EXPECT_THAT(
      ToldOf<shard_command::SendWeights>(effect::SendWeights{.partition = 4}),
      ElementsAre(1));
  EXPECT_TRUE(commands_.IsElsewhere(effect::SendWeights{.partition = 4}));
  EXPECT_THAT(commands_.Of(effect::SendWeights{.partition = 3}, Held),
              IsEmpty());
  EXPECT_FALSE(commands_.IsElsewhere(effect::SendWeights{.partition = 3}));
}

TEST_F(ShardCommandsTest, AGradientWithATicketIsHeldElsewhere) {
  EXPECT_TRUE(commands_.IsElsewhere(
      effect::HoldGradient{.gradient = {.partition = 1, .ticket = 3}}));
  EXPECT_FALSE(commands_.IsElsewhere(effect::HoldGradient{}));
}

// Before that, what changes is part of the model's settings.
TEST_F(ShardCommandsTest, SettingsChangeOnceThereIsAModel) {
  const effect::PolicyChanged changed{.record = {.changed = {{"lease", "1s"}}}};
  EXPECT_THAT(commands_.Of(changed, Held), IsEmpty());
  commands_.Of(Model(), Held);
  EXPECT_THAT(ToldOf<shard_command::Adopt>(changed), ElementsAre(1, 2));
}

}  // namespace
}  // namespace cohort
