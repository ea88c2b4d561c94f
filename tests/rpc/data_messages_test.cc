#include "server/rpc/data_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/core/float_values.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

constexpr ShardPlace kPlace{.index = 1, .count = 2};

// What arrives of `command`.
absl::StatusOr<ShardCommand> Passed(const ShardCommand& command) {
  return FromProto(EncodeCommand(command));
}

template <typename Command>
Command Arrived(const Command& command) {
  return std::get<Command>(*Passed(command));
}

Installation SmallModel() {
  auto model = ModelOfOnes(2);
  model->plan.dataset = "d";
  model->plan.train_samples = 8;
  auto first = SnapshotWith({nullptr, BufferOf({20})});
  first->slots[1].first_moment = BufferOf({3});
  first->slots[1].updates = {5};
  return {.place = kPlace,
          .model = std::move(model),
          .snapshot = std::move(first),
          .settings = {.optimizer = {.kind = OptimizerKind::kAdam}}};
}

TEST(DataMessagesTest, AModelArrivesWithItsBuffersAndSettings) {
  InstallationReader reader(kPlace);
  absl::StatusOr<std::optional<Installation>> last;
  EncodeInstallation(SmallModel(), [&](v1::ShardCommand& message) {
    ASSERT_TRUE(InstallationReader::Reads(message));
    last = reader.Take(message);
    ASSERT_TRUE(last.ok()) << last.status();
  });
  ASSERT_TRUE(last->has_value());
  const Installation& install = **last;
  EXPECT_EQ(install.place, kPlace);
  EXPECT_EQ(install.snapshot->version, Version(7));
  EXPECT_EQ(install.snapshot->weights[0], nullptr);
  EXPECT_EQ(*install.snapshot->weights[1]->data(), 20);
  EXPECT_EQ(*install.snapshot->slots[1].first_moment->data(), 3);
  EXPECT_THAT(install.snapshot->slots[1].updates, ElementsAre(5));
  EXPECT_EQ(install.settings.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(install.model->partitions.size(), 2u);
}

TEST(DataMessagesTest, APlanArrivesToTheBit) {
  const CommitPlan plan{
      .transaction = 9,
      .base = Version(7),
      .contributors = {{.rank = Rank(3),
                        .key = {.sequence = Sequence(4),
                                .attempt = Attempt(1)}}},
      .learning_rate = 0.1,
      .group_rates = {0.1, 0.3},
      .numbers = {{.group = 1, .name = "momentum", .value = 1.0 / 3}},
      .loss_weight = 1.0 / 3,
      .read = Version(5),
      .compensation = 0.04,
      .adaptive = true,
      .weight = 0.7};
  EXPECT_EQ(Arrived(command::Prepare{.plan = plan}).plan, plan);
}

TEST(DataMessagesTest, AnAbortSaysWhetherItMakesAVersion) {
  EXPECT_EQ(Arrived(command::Abort{.transaction = 1}).skipped, std::nullopt);
  const auto skipped = Arrived(command::Abort{
      .transaction = 1, .skipped = Version(8), .held = {Version(7)}});
  EXPECT_EQ(skipped.skipped, Version(8));
  EXPECT_THAT(skipped.held, ElementsAre(Version(7)));
}

TEST(DataMessagesTest, ARefusalKeepsCodeAndText) {
  const auto refuse = Arrived(
      command::Refuse{.ticket = 4, .status = absl::AbortedError("fenced")});
  EXPECT_EQ(refuse.ticket, 4);
  EXPECT_EQ(refuse.status, absl::AbortedError("fenced"));
}

TEST(DataMessagesTest, AFoldSaysWhatIsPrepared) {
  v1::ShardFold proto;
  ToProto(FoldReport{.transaction = 2,
                     .partition = 1,
                     .gradient_bytes = 8,
                     .prepared = true},
          &proto);
  const FoldReport arrived = *FromProto(proto);
  EXPECT_EQ(arrived.transaction, 2);
  EXPECT_EQ(arrived.partition, 1);
  EXPECT_TRUE(arrived.prepared);
  EXPECT_EQ(arrived.gradient_bytes, 8);
}

TEST(DataMessagesTest, NormsAndFactorsArriveToTheBit) {
  v1::ShardFold proto;
  ToProto(FoldReport{.norms = {{.gradient = 1.0 / 3, .weights = 0.1},
                               {.gradient = 2, .weights = 0}}},
          &proto);
  EXPECT_THAT(FromProto(proto)->norms,
              ElementsAre(SliceNorm{.gradient = 1.0 / 3, .weights = 0.1},
                          SliceNorm{.gradient = 2, .weights = 0}));
  const auto scale = Arrived(command::Scale{
      .transaction = 3, .scales = {.clip = 1.0 / 3, .trust_ratios = {0.1, 1}}});
  EXPECT_EQ(scale.transaction, 3);
  EXPECT_EQ(scale.scales.clip, 1.0 / 3);
  EXPECT_THAT(scale.scales.trust_ratios, ElementsAre(0.1, 1));
}

TEST(DataMessagesTest, NormsAndFactorsThatCannotBeAreRefused) {
  v1::ShardFold fold;
  fold.add_gradient_squares(1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(fold).status()));
  fold.add_weight_squares(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(fold).status()));
  EXPECT_THAT(
      Passed(command::Scale{
          .scales = {.clip = std::numeric_limits<double>::quiet_NaN()}}),
      IsError(kInvalidArgument, ""));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Passed(command::Scale{.scales = {.trust_ratios = {1, -1}}}).status()));
}

TEST(DataMessagesTest, DamagedWeightsAreNoticed) {
  InstallationReader reader(kPlace);
  absl::Status status;
  EncodeInstallation(SmallModel(), [&](v1::ShardCommand& message) {
    if (message.has_partition()) {
      (*message.mutable_partition()->mutable_values())[0] ^= 1;
    }
    if (status.ok()) status = reader.Take(message).status();
  });
  EXPECT_TRUE(absl::IsDataLoss(status));
}

TEST(DataMessagesTest, ACommandOutOfOrderIsRefused) {
  InstallationReader reader(kPlace);
  v1::ShardCommand end;
  end.set_install_end(true);
  EXPECT_TRUE(absl::IsInvalidArgument(reader.Take(end).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(end).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::ShardCommand()).status()));
}

}  // namespace
}  // namespace cohort
