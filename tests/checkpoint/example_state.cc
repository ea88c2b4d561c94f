#include "tests/checkpoint/example_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/float_buffer.h"
#include "common/formats/file_system.h"
#include "common/model_layout.h"

namespace cohort {
namespace {

constexpr int64_t kPartitionBytes = 16;

SharedModel ExampleModel() {
  auto model = std::make_shared<RegisteredModel>();
  model->layout = {
      .parameters = {{.name = "conv.weight", .shape = {2, 3}},
                     {.name = "bn.weight", .shape = {1}, .decay_exempt = true},
                     {.name = "bn.bias",
                      .shape = {1},
                      .decay_exempt = true,
                      .rate_multiplier = 2.5,
                      .decay_multiplier = 0.5},
                     {.name = "head.weight", .shape = {3}, .trainable = false}},
      .batch_norms = {{.name = "bn", .channels = 1, .epsilon = 1e-3},
                      {.name = "bn_plain",
                       .channels = 2,
                       .momentum = std::nullopt,
                       .affine = false,
                       .track_statistics = false,
                       .convention = StatisticsConvention::kKeras}}};
  model->partitions = MakePartitions(model->layout, kPartitionBytes);
  model->plan = {.dataset = "synthetic",
                 .dataset_digest = "0123456789abcdef",
                 .train_samples = 60,
                 .test_samples = 10,
                 .loss_reference = 0.1,
                 .loss = "cross-entropy, class weights 1,2"};
  return model;
}

SharedSnapshot ExampleSnapshot(const RegisteredModel& model, int64_t version) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = Version(version);
  auto value = static_cast<float>(100 * version);
  for (const Partition& partition : model.partitions) {
    auto weights = std::make_shared<FloatBuffer>(partition.elements);
    auto velocity = std::make_shared<FloatBuffer>(partition.elements);
    for (size_t i = 0; i < weights->mutable_span().size(); ++i) {
      weights->mutable_span()[i] = value;
      velocity->mutable_span()[i] = -value;
      value += 1;
    }
    snapshot->weights.push_back(std::move(weights));
    snapshot->slots.push_back(
        {.velocity = partition.trainable ? std::move(velocity) : nullptr});
  }
  const LayerStatistics plain = {
      .mean = {1.0 / 3, -1e-300}, .variance = {1, 1}, .num_batches_tracked = 0};
  snapshot->statistics = std::make_shared<const StatisticsSets>(StatisticsSets{
      {.kind = StatisticsKind::kSync,
       .layers =
           {{.mean = {0.5}, .variance = {2.25}, .num_batches_tracked = version},
            plain}},
      {.kind = StatisticsKind::kAfter,
       .layers =
           {{.mean = {0.75}, .variance = {1.0 / 7}, .num_batches_tracked = 200},
            plain},
       .collected = Version(3)}});
  return snapshot;
}

void ExpectSameBuffers(const std::vector<SharedFloats>& seen,
                       const std::vector<SharedFloats>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t p = 0; p < seen.size(); ++p) {
    ASSERT_EQ(seen[p] == nullptr, wanted[p] == nullptr) << "partition " << p;
    if (seen[p] == nullptr) continue;
    EXPECT_EQ(seen[p]->span(), wanted[p]->span()) << "partition " << p;
  }
}

std::vector<SharedFloats> Buffers(const std::vector<Slots>& slots,
                                  const SlotKind& kind) {
  std::vector<SharedFloats> buffers;
  for (const Slots& one : slots) buffers.push_back(one.*kind.buffer);
  return buffers;
}

}  // namespace

std::vector<SharedFloats> Velocities(const ModelSnapshot& snapshot) {
  return Buffers(snapshot.slots, AllSlots()[0]);
}

RunState ExampleState(int64_t version) {
  RunState state{.model = ExampleModel(),
                 .samples = 12,
                 .data_epoch = 3,
                 .cursor = 24,
                 .policy_epoch = 2,
                 .next_sequences = {Sequence(5), Sequence(6)},
                 .batch_sizes = {32, 16},
                 .lost = {Rank(1)},
                 .never_registered = {Rank(2)},
                 .next_incarnation = Incarnation(9)};
  state.settings = {{"aggregation", "async"}, {"learning_rate", "0.05"}};
  state.epochs = 12;
  state.max_steps = 70;
  state.policy_history = {
      {.policy_epoch = 1,
       .changed = {{"aggregation", "sync"}, {"learning_rate", "0.05"}},
       .text = "sync"},
      {.policy_epoch = 2,
       .version = Version(3),
       .samples = 6,
       .changed = {{"aggregation", "async"}},
       .text = "aggregation sync -> async: \"quoted\"",
       .note = {.author = "ana@host", .reason = "too \"slow\""}}};
  state.score = {
      .version = Version(6), .epochs = 2, .loss = 1.5, .mean_iou = 0.25};
  state.reissue = {{.epoch = 2, .range = {.begin = 50, .end = 60}},
                   {.epoch = 3, .range = {.begin = 8, .end = 16}}};
  state.snapshot = ExampleSnapshot(*state.model, version);
  return state;
}

RunState ProgramState(int64_t version) {
  RunState state = ExampleState(version);
  auto model = std::make_shared<RegisteredModel>(*state.model);
  model->layout.parameters[1].rate_group = 2;
  model->plan.train_samples = 0;
  model->plan.test_samples = 0;
  model->plan.own_data = true;
  model->plan.rates_by_workers = true;
  model->plan.optimizer = {{"learning_rate", "0.001"}, {"optimizer", "adam"}};
  state.model = std::move(model);
  state.data_epoch = 0;
  state.cursor = 0;
  state.reissue.clear();
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  OwnSnapshot(state).front_end_state =
      std::make_shared<const std::string>(bytes);
  return state;
}

ModelSnapshot& OwnSnapshot(RunState& state) {
  auto own = std::make_shared<ModelSnapshot>(*state.snapshot);
  state.snapshot = own;
  return *own;
}

int64_t LoadedVersion(const std::string& folder,
                      std::vector<std::string>& problems) {
  problems.clear();
  const auto loaded = LoadNewestCheckpoint(RealFileSystem(), folder, problems);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok() || !loaded->has_value()) return -1;
  const int64_t version = (*loaded)->state.snapshot->version.value();
  ExpectSameState((*loaded)->state, ExampleState(version));
  return version;
}

RunIdentity ExampleIdentity() {
  return {.run_id = "run-\"1\"", .seed = 0xfedcba9876543210u};
}

void ExpectSameState(const RunState& seen, const RunState& wanted) {
  EXPECT_EQ(seen.model->layout.parameters, wanted.model->layout.parameters);
  EXPECT_EQ(seen.model->layout.batch_norms, wanted.model->layout.batch_norms);
  EXPECT_EQ(seen.model->partitions, wanted.model->partitions);
  EXPECT_TRUE(CheckSamePlan(seen.model->plan, wanted.model->plan).ok());
  EXPECT_EQ(seen.model->plan.loss_reference, wanted.model->plan.loss_reference);
  EXPECT_EQ(seen.snapshot->version, wanted.snapshot->version);
  ASSERT_EQ(seen.snapshot->front_end_state == nullptr,
            wanted.snapshot->front_end_state == nullptr);
  if (wanted.snapshot->front_end_state != nullptr) {
    EXPECT_EQ(*seen.snapshot->front_end_state,
              *wanted.snapshot->front_end_state);
  }
  ExpectSameBuffers(seen.snapshot->weights, wanted.snapshot->weights);
  for (const SlotKind& slot : AllSlots()) {
    SCOPED_TRACE(slot.name);
    ExpectSameBuffers(Buffers(seen.snapshot->slots, slot),
                      Buffers(wanted.snapshot->slots, slot));
  }
  for (size_t p = 0; p < wanted.snapshot->slots.size(); ++p) {
    EXPECT_EQ(seen.snapshot->slots[p].updates,
              wanted.snapshot->slots[p].updates);
  }
  EXPECT_EQ(*seen.snapshot->statistics, *wanted.snapshot->statistics);
  EXPECT_EQ(seen.samples, wanted.samples);
  EXPECT_EQ(seen.data_epoch, wanted.data_epoch);
  EXPECT_EQ(seen.cursor, wanted.cursor);
  EXPECT_EQ(seen.policy_epoch, wanted.policy_epoch);
  EXPECT_EQ(seen.settings, wanted.settings);
  EXPECT_EQ(seen.epochs, wanted.epochs);
  EXPECT_EQ(seen.max_steps, wanted.max_steps);
  EXPECT_EQ(seen.ended, wanted.ended);
  ASSERT_EQ(seen.kept_state == nullptr, wanted.kept_state == nullptr);
  if (wanted.kept_state != nullptr) {
    EXPECT_EQ(*seen.kept_state, *wanted.kept_state);
    EXPECT_EQ(seen.kept_moves_from, wanted.kept_moves_from);
  }
  EXPECT_EQ(seen.policy_history, wanted.policy_history);
  EXPECT_EQ(seen.next_sequences, wanted.next_sequences);
  EXPECT_EQ(seen.batch_sizes, wanted.batch_sizes);
  EXPECT_EQ(seen.lost, wanted.lost);
  EXPECT_EQ(seen.never_registered, wanted.never_registered);
  EXPECT_EQ(seen.next_incarnation, wanted.next_incarnation);
  EXPECT_EQ(seen.call_order, wanted.call_order);
  EXPECT_EQ(seen.reissue, wanted.reissue);
  EXPECT_EQ(seen.score, wanted.score);
}

}  // namespace cohort
