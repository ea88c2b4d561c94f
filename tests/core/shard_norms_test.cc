// Commits that need norms over the partitions of all shards.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/float_buffer.h"
#include "kernels/backend.h"
#include "server/core/optimizer/slots.h"
#include "server/core/step/pending_commit.h"
#include "server/partitions/fold_stage.h"
#include "tests/kernels/reference/optimizer_oracle.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using ::testing::IsEmpty;

constexpr int32_t kPushes = 2;

// Values whose squares are rounded, so that another order of sums shows.
SharedFloats NoiseOf(int64_t elements, std::mt19937& random) {
  std::normal_distribution<float> noise;
  auto buffer = std::make_shared<FloatBuffer>(elements);
  for (int64_t i = 0; i < elements; ++i) buffer->data()[i] = noise(random);
  return buffer;
}

PushId NoisyPush(int32_t rank) {
  return {.rank = Rank(rank), .key = {.sequence = Sequence(1)}};
}

// Three parameters in six partitions, which divide the first and the last.
class ShardNormsTest : public ::testing::Test {
 protected:
  ShardNormsTest() {
    auto model = std::make_shared<RegisteredModel>();
    model->layout = {.parameters = {{.name = "conv.weight", .shape = {70}},
                                    {.name = "bn.weight", .shape = {20}},
                                    {.name = "fc.weight", .shape = {80}}}};
    model->layout.parameters[1].decay_exempt = true;
    model->plan.loss_reference = 1;
    model->partitions = MakePartitions(model->layout, 30 * sizeof(float));
    model_ = std::move(model);
    for (const Partition& partition : model_->partitions) {
      weights_.push_back(NoiseOf(partition.elements, random_));
      for (auto& gradients : gradients_) {
        gradients.push_back(NoiseOf(partition.elements, random_));
      }
    }
  }

  static CommitPlan PlanOfAll() {
    CommitPlan plan{
        .transaction = 1, .learning_rate = 0.1, .loss_weight = kPushes};
    for (int32_t rank = 0; rank < kPushes; ++rank) {
      plan.contributors.push_back(NoisyPush(rank));
    }
    return plan;
  }

  std::vector<FoldJob> Prepare(FoldStage& shard,
                               const OptimizerOptions& optimizer) const {
    auto base = std::make_shared<ModelSnapshot>();
    base->weights = weights_;
    base->slots =
        FitSlots(model_->partitions, weights_, {}, SlotsOf(optimizer, {}));
    return shard.Prepare(
        PlanOfAll(),
        {.model = model_,
         .base = std::move(base),
         .optimizer = optimizer,
         .mask = *MaskFor(optimizer, model_->layout, model_->partitions)});
  }

  // What the core knows in the end of a commit by `count` shards.
  PendingCommit CommitBy(int32_t count, const OptimizerOptions& optimizer) {
    shards_.clear();
    for (int32_t i = 0; i < count; ++i) {
      shards_.emplace_back(ShardPlace{.index = i, .count = count});
    }
    PendingCommit commit(PlanOfAll(), model_, optimizer);
    for (size_t p = 0; p < model_->partitions.size(); ++p) {
      const auto partition = static_cast<int32_t>(p);
      commit.Begin(partition);
      const auto owner =
          static_cast<size_t>(ShardPlace::OwnerOf(partition, count));
      for (int32_t rank = 0; rank < kPushes; ++rank) {
        shards_[owner].Hold(
            {.push = NoisyPush(rank),
             .partition = partition,
             .gradient = RopeOf(gradients_[static_cast<size_t>(rank)][p])});
      }
    }
    for (size_t i = 0; i < shards_.size(); ++i) {
      Queue(i, Prepare(shards_[i], optimizer));
    }
    while (!folds_.empty()) FoldOne(commit);
    return commit;
  }
  // The next version of `partition`.
  SharedSnapshot NextOf(size_t partition) const {
    return shards_[partition % shards_.size()].transaction()->Next();
  }

  void Queue(size_t shard, std::vector<FoldJob> jobs) {
    for (FoldJob& job : jobs) folds_.emplace_back(shard, std::move(job));
  }

  // The last first: results come in any order.
  void FoldOne(PendingCommit& commit) {
    const auto [shard, job] = std::move(folds_.back());
    folds_.pop_back();
    commit.Take(shards_[shard].FoldDone(
        RunFold(job, kernels::ReferenceBackend(), pool_)));
    const std::optional<GradientScales> scales = commit.TakeScales();
    if (!scales.has_value()) return;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (shards_[i].transaction()->AwaitsScales()) {
        Queue(i, shards_[i].Scale(*scales));
      }
    }
  }

  // One server and several come to the same bits.
  void ExpectSameForAnyNumber(const OptimizerOptions& optimizer) {
    const PendingCommit one = CommitBy(1, optimizer);
    ASSERT_TRUE(one.complete());
    const SharedSnapshot expected = NextOf(0);
    for (int32_t count = 2; count <= 7; ++count) {
      const PendingCommit several = CommitBy(count, optimizer);
      ASSERT_TRUE(several.complete()) << count;
      EXPECT_EQ(several.gradient_norm(), one.gradient_norm()) << count;
      for (size_t p = 0; p < model_->partitions.size(); ++p) {
        const SharedSnapshot next = NextOf(p);
        EXPECT_EQ(next->weights[p]->Checksum(),
                  expected->weights[p]->Checksum())
            << count << " shards, partition " << p;
        for (const SlotKind& kind : AllSlots()) {
          const SharedFloats& slot = expected->slots[p].*kind.buffer;
          if (slot == nullptr) continue;
          EXPECT_EQ((next->slots[p].*kind.buffer)->Checksum(), slot->Checksum())
              << kind.name;
        }
      }
    }
  }

  std::mt19937 random_{7};
  SharedModel model_;
  std::vector<SharedFloats> weights_;
  // By rank.
  std::vector<SharedFloats> gradients_[kPushes];
  FloatBufferPool pool_;
  std::vector<FoldStage> shards_;
  std::deque<std::pair<size_t, FoldJob>> folds_;
};

TEST_F(ShardNormsTest, ClippingHasTheBitsOfOneServer) {
  for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
    SCOPED_TRACE(c.name());
    ExpectSameForAnyNumber(
        {.kind = c.kind, .numbers = c.numbers, .clip_norm = 0.5});
  }
}

TEST_F(ShardNormsTest, TrustRatiosHaveTheBitsOfOneServer) {
  for (OptimizerKind kind : {OptimizerKind::kLars, OptimizerKind::kLamb}) {
    ExpectSameForAnyNumber({.kind = kind});
    ExpectSameForAnyNumber(
        {.kind = kind, .clip_norm = 0.5, .freeze = {"conv.weight[10:25]"}});
  }
}

// Shard 0 has nothing to fold, and takes the scales all the same: of LAMB
// twice.
TEST_F(ShardNormsTest, AShardWithoutTrainedPartitionsHasNoSecondPass) {
  auto model = std::make_shared<RegisteredModel>(*model_);
  for (size_t p = 0; p < model->partitions.size(); p += 2) {
    model->partitions[p].trainable = false;
  }
  model_ = model;
  for (const OptimizerOptions& optimizer :
       {OptimizerOptions{.clip_norm = 0.5},
        OptimizerOptions{.kind = OptimizerKind::kLamb}}) {
    PendingCommit commit(PlanOfAll(), model_, optimizer);
    shards_.clear();
    shards_.emplace_back(ShardPlace{.index = 0, .count = 2});
    shards_.emplace_back(ShardPlace{.index = 1, .count = 2});
    for (int32_t p = 1; p < 6; p += 2) {
      commit.Begin(p);
      for (int32_t rank = 0; rank < kPushes; ++rank) {
        shards_[1].Hold(
            {.push = NoisyPush(rank),
             .partition = p,
             .gradient = RopeOf(gradients_[0][static_cast<size_t>(p)])});
      }
    }
    EXPECT_THAT(Prepare(shards_[0], optimizer), IsEmpty());
    Queue(1, Prepare(shards_[1], optimizer));
    while (!folds_.empty()) FoldOne(commit);
    EXPECT_TRUE(commit.complete());
    EXPECT_TRUE(commit.gradient_norm().has_value());
    EXPECT_FALSE(shards_[0].transaction()->AwaitsScales());
  }
}

TEST_F(ShardNormsTest, AGradientThatIsNotFiniteElsewhereGivesTheCommitUp) {
  auto broken = std::make_shared<FloatBuffer>(gradients_[1][1]->size());
  std::fill_n(broken->data(), broken->size(),
              std::numeric_limits<float>::quiet_NaN());
  gradients_[1][1] = broken;
  const PendingCommit commit = CommitBy(2, {.clip_norm = 0.5});
  EXPECT_TRUE(commit.complete());
  ASSERT_TRUE(commit.nonfinite().has_value());
  EXPECT_EQ(commit.nonfinite()->rank, Rank(1));
  EXPECT_EQ(commit.nonfinite()->partition, 1);
  // Its second pass never begins.
  EXPECT_FALSE(shards_[1].transaction()->AwaitsScales());
}

// The norms of a partition count once, and a report without any is of no fold.
TEST_F(ShardNormsTest, OtherReportsChangeNothing) {
  PendingCommit commit(PlanOfAll(), model_, {.clip_norm = 0.5});
  const auto report = [&](int32_t partition, std::vector<SliceNorm> norms) {
    return commit.Take(
        {.transaction = 1, .partition = partition, .norms = std::move(norms)});
  };
  for (int32_t p = 0; p < 5; ++p) {
    const size_t slices =
        model_->partitions[static_cast<size_t>(p)].slices.size();
    EXPECT_TRUE(report(p, {}));
    EXPECT_TRUE(report(p, std::vector<SliceNorm>(slices, {.gradient = 4})));
    EXPECT_TRUE(report(p, std::vector<SliceNorm>(slices, {.gradient = 9})));
  }
  EXPECT_FALSE(commit.Take({.transaction = 2, .partition = 5, .norms = {{}}}));
  EXPECT_EQ(commit.TakeScales(), std::nullopt);
  EXPECT_TRUE(report(5, {{.gradient = 4}}));
  EXPECT_NE(commit.TakeScales(), std::nullopt);
  // Once.
  EXPECT_EQ(commit.TakeScales(), std::nullopt);
}

}  // namespace
}  // namespace cohort
