#include "common/wire/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/limits.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Assignment TrainAssignment() {
  Assignment a;
  a.kind = AssignmentKind::kTrain;
  a.sequence = Sequence(5);
  a.attempt = Attempt(1);
  a.version = Version(9);
  a.policy_epoch = 2;
  a.members = {Rank(0), Rank(3)};
  a.data_epoch = 4;
  a.range = {.begin = 32, .end = 64};
  a.batches = 3;
  a.split = DataSplit::kTest;
  a.global_normalization = true;
  a.reason = "because";
  a.unfinished = true;
  a.failed = true;
  a.statistics = "chief";
  a.wait = absl::Seconds(2);
  a.score = {.version = Version(8), .epochs = 4, .loss = 0.5, .accuracy = 0};
  return a;
}

ModelLayout SmallLayout() {
  ModelLayout layout;
  layout.parameters = {{.name = "w", .shape = {2, 3}},
                       {.name = "b",
                        .shape = {2},
                        .trainable = false,
                        .decay_exempt = true,
                        .rate_multiplier = 10,
                        .decay_multiplier = 0.25,
                        .rate_group = 3}};
  layout.batch_norms = {{.name = "bn",
                         .channels = 2,
                         .epsilon = 1e-3,
                         .momentum = std::nullopt,
                         .affine = false,
                         .track_statistics = false,
                         .convention = StatisticsConvention::kKeras},
                        {.name = "bn2", .channels = 1}};
  return layout;
}

void ExpectEqual(const Assignment& a, const Assignment& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.policy_epoch, b.policy_epoch);
  EXPECT_EQ(a.members, b.members);
  EXPECT_EQ(a.data_epoch, b.data_epoch);
  EXPECT_EQ(a.range, b.range);
  EXPECT_EQ(a.batches, b.batches);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.split, b.split);
  EXPECT_EQ(a.global_normalization, b.global_normalization);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.unfinished, b.unfinished);
  EXPECT_EQ(a.failed, b.failed);
  EXPECT_EQ(a.statistics, b.statistics);
  EXPECT_EQ(a.wait, b.wait);
  EXPECT_EQ(a.score, b.score);
}

// The message of `Proto` that represents `value`.
template <typename Proto, typename Value>
Proto Encoded(const Value& value) {
  Proto proto;
  ToProto(value, &proto);
  return proto;
}

// Applies each change to a good message and expects a refusal that names
// the text.
template <typename Proto>
struct BadField {
  const char* named;
  std::function<void(Proto&)> change;
};

template <typename Proto>
void ExpectRefused(const Proto& good,
                   const std::vector<BadField<Proto>>& cases) {
  ASSERT_TRUE(FromProto(good).ok()) << FromProto(good).status();
  for (const BadField<Proto>& bad : cases) {
    Proto proto = good;
    bad.change(proto);
    EXPECT_THAT(FromProto(proto), IsError(kInvalidArgument, bad.named));
  }
}

TEST(ConvertTest, AssignmentComesBack) {
  for (AssignmentKind kind : {AssignmentKind::kTrain, AssignmentKind::kEvaluate,
                              AssignmentKind::kWait, AssignmentKind::kFinished,
                              AssignmentKind::kCollectMoments}) {
    Assignment sent = TrainAssignment();
    sent.kind = kind;
    const auto back = OkValue(FromProto(Encoded<v1::Assignment>(sent)));
    ExpectEqual(back, sent);
  }
}

TEST(ConvertTest, AnEncodingThatIsNotKnownAsksForFloat32) {
  Assignment sent = TrainAssignment();
  // As from a server that has only this one, so that old workers see nothing
  // new.
  v1::Assignment proto = Encoded<v1::Assignment>(sent);
  EXPECT_EQ(proto.gradient_encoding(), v1::ENCODING_UNSPECIFIED);
  EXPECT_EQ(FromProto(proto)->gradients, ElementType::kFloat32);
  sent.gradients = ElementType::kBFloat16;
  proto = Encoded<v1::Assignment>(sent);
  EXPECT_EQ(proto.gradient_encoding(), v1::ENCODING_BFLOAT16);
  EXPECT_EQ(FromProto(proto)->gradients, ElementType::kBFloat16);
  proto.set_gradient_encoding(static_cast<v1::Encoding>(99));
  EXPECT_EQ(FromProto(proto)->gradients, ElementType::kFloat32);
}

TEST(ConvertTest, UnboundedAndTinyWaitsStayApart) {
  Assignment sent;
  sent.wait = absl::InfiniteDuration();
  EXPECT_EQ(FromProto(Encoded<v1::Assignment>(sent))->wait,
            absl::InfiniteDuration());
  sent.wait = absl::ZeroDuration();
  EXPECT_EQ(FromProto(Encoded<v1::Assignment>(sent))->wait,
            absl::Milliseconds(1));
}

Assignment LocalAssignment() {
  Assignment sent = TrainAssignment();
  sent.local_steps = {{.begin = 7, .end = 9}, {.begin = 12, .end = 12}};
  sent.range = {.begin = 0, .end = 2};
  sent.local_rate_factor = 0.25;
  return sent;
}

TEST(ConvertTest, LocalStepsComeBackAndAreChecked) {
  const Assignment sent = LocalAssignment();
  const v1::Assignment good = Encoded<v1::Assignment>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_EQ(back.local_steps, sent.local_steps);
  EXPECT_EQ(back.range, sent.range);
  EXPECT_EQ(back.local_rate_factor, 0.25);
  ExpectRefused<v1::Assignment>(
      good,
      {{"local_steps",
        [](auto& p) { p.mutable_local_steps(0)->set_begin(-1); }},
       {"local_steps", [](auto& p) { p.mutable_local_steps(0)->set_end(6); }},
       {"local_steps", [](auto& p) { p.mutable_local_steps(1)->set_end(13); }},
       {"range", [](auto& p) { p.set_range_end(3); }},
       {"local_rate_factor", [](auto& p) { p.set_local_rate_factor(kNan); }},
       {"local_rate_factor", [](auto& p) { p.set_local_rate_factor(-1); }}});
}

TEST(ConvertTest, MomentsOfLocalStepsComeBackAndAreChecked) {
  const CallMoments sent = {
      .moments = {.count = 4, .first = {1}, .second = {2}},
      .weight = 0.5,
      .updates = 3};
  const v1::CallMoments good = Encoded<v1::CallMoments>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_EQ(back.weight, 0.5);
  EXPECT_EQ(back.updates, 3);
  ExpectRefused<v1::CallMoments>(
      good, {{"weight", [](auto& p) { p.set_weight(-1); }},
             {"weight", [](auto& p) { p.set_weight(kNan); }},
             {"updates", [](auto& p) { p.set_updates(-1); }}});
}

TEST(ConvertTest, BadAssignmentsAreRefused) {
  ExpectRefused<v1::Assignment>(
      Encoded<v1::Assignment>(TrainAssignment()),
      {{"kind", [](auto& p) { p.clear_kind(); }},
       {"kind",
        [](auto& p) { p.set_kind(static_cast<v1::AssignmentKind>(99)); }},
       {"sequence", [](auto& p) { p.set_sequence(-1); }},
       {"attempt", [](auto& p) { p.set_attempt(-1); }},
       {"version", [](auto& p) { p.set_version(-1); }},
       {"policy_epoch", [](auto& p) { p.set_policy_epoch(-1); }},
       {"data_epoch", [](auto& p) { p.set_data_epoch(-1); }},
       {"wait_ms", [](auto& p) { p.set_wait_ms(-1); }},
       {"members", [](auto& p) { p.set_members(0, -1); }},
       {"members", [](auto& p) { p.set_members(1, 0); }},
       {"range", [](auto& p) { p.set_range_begin(-1); }},
       {"batches", [](auto& p) { p.set_batches(-1); }},
       {"range", [](auto& p) { p.set_range_end(31); }},
       {"split", [](auto& p) { p.clear_split(); }}});
}

TEST(ConvertTest, SenderComesBackAndIsChecked) {
  const v1::Sender good = Encoded<v1::Sender>(
      Sender{.run_id = "r", .rank = Rank(2), .incarnation = Incarnation(7)});
  const auto back = OkValue(FromProto(good));
  EXPECT_EQ(back.run_id, "r");
  EXPECT_EQ(back.rank, Rank(2));
  EXPECT_EQ(back.incarnation, Incarnation(7));
  ExpectRefused<v1::Sender>(
      good, {{"run_id", [](auto& p) { p.clear_run_id(); }},
             {"rank", [](auto& p) { p.set_rank(-1); }},
             {"incarnation", [](auto& p) { p.set_incarnation(0); }}});
}

TEST(ConvertTest, LayoutComesBackAndIsChecked) {
  const ModelLayout sent = SmallLayout();
  const v1::ModelLayout good = Encoded<v1::ModelLayout>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_EQ(back.parameters, sent.parameters);
  EXPECT_EQ(back.batch_norms, sent.batch_norms);
  ExpectRefused<v1::ModelLayout>(
      good,
      {{"w", [](auto& p) { p.mutable_parameters(0)->set_shape(1, 0); }},
       {"b", [](auto& p) { p.mutable_parameters(0)->set_name("b"); }},
       {"b: got rate group",
        [](auto& p) { p.mutable_parameters(1)->set_rate_group(-1); }},
       {"b: got rate group",
        [](auto& p) {
          p.mutable_parameters(1)->set_rate_group(limits::kRateGroupsMax);
        }},
       {"bn: convention",
        [](auto& p) { p.mutable_batch_norms(0)->clear_convention(); }},
       {"bn", [](auto& p) { p.mutable_batch_norms(0)->set_channels(0); }}});
}

TEST(ConvertTest, PlanComesBackAndIsChecked) {
  const v1::RunPlan good = Encoded<v1::RunPlan>(RunPlan{.dataset = "mnist",
                                                        .dataset_digest = "0a",
                                                        .train_samples = 60,
                                                        .test_samples = 10,
                                                        .loss_reference = 8,
                                                        .loss = "squares"});
  const auto back = OkValue(FromProto(good));
  ExpectOk(CheckSamePlan(back, {.dataset = "mnist",
                                .dataset_digest = "0a",
                                .train_samples = 60,
                                .test_samples = 10,
                                .loss = "squares"}));
  EXPECT_EQ(back.loss_reference, 8);
  ExpectRefused<v1::RunPlan>(
      good, {{"train_samples", [](auto& p) { p.set_train_samples(0); }},
             {"test_samples", [](auto& p) { p.set_test_samples(-1); }},
             {"loss_reference", [](auto& p) { p.set_loss_reference(0); }},
             {"loss_reference", [](auto& p) { p.set_loss_reference(kNan); }}});
}

TEST(ConvertTest, APlanOfATrainingProgramComesBackAndIsChecked) {
  const RunPlan sent{
      .own_data = true,
      .rates_by_workers = true,
      .optimizer = {{"optimizer", "adam"}, {"learning_rate", "0.001"}},
      .awaits_scores = true};
  const v1::RunPlan good = Encoded<v1::RunPlan>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_TRUE(back.own_data);
  EXPECT_TRUE(back.rates_by_workers);
  EXPECT_TRUE(back.awaits_scores);
  EXPECT_EQ(back.optimizer, sent.optimizer);
  // In the message ascending by name, so that equal plans are equal bytes.
  ASSERT_EQ(good.optimizer_size(), 2);
  EXPECT_EQ(good.optimizer(0).name(), "learning_rate");
  ExpectRefused<v1::RunPlan>(good, {{"'optimizer' twice", [](auto& p) {
                                       p.add_optimizer()->set_name("optimizer");
                                     }}});

  // A client may leave all of it out.
  const auto earlier = OkValue(FromProto(
      v1::RunPlan(Encoded<v1::RunPlan>(RunPlan{.train_samples = 1}))));
  EXPECT_FALSE(earlier.own_data);
  EXPECT_FALSE(earlier.rates_by_workers);
  EXPECT_FALSE(earlier.awaits_scores);
  EXPECT_TRUE(earlier.optimizer.empty());
}

TEST(ConvertTest, PartitionsComeBack) {
  const ModelLayout layout = SmallLayout();
  // Eight bytes each: w in three partitions, b in one.
  const std::vector<Partition> sent = MakePartitions(layout, 8);
  v1::RegisterReply reply;
  ToProto(sent, reply.mutable_partitions());
  const auto back = OkValue(FromProto(reply.partitions(), layout));
  EXPECT_EQ(back, sent);
}

TEST(ConvertTest, PartitionsOutsideTheModelAreRefused) {
  const ModelLayout layout = SmallLayout();
  v1::RegisterReply good;
  ToProto(MakePartitions(layout, 1 << 20), good.mutable_partitions());
  const std::vector<std::function<void(v1::Slice&)>> changes = {
      [](v1::Slice& s) { s.set_parameter(-1); },
      [](v1::Slice& s) { s.set_parameter(2); },
      [](v1::Slice& s) { s.set_offset_elements(1); },
      [](v1::Slice& s) { s.set_offset_elements(-1); },
      [](v1::Slice& s) { s.set_count_elements(0); },
      [](v1::Slice& s) { s.set_count_elements(5); },
      [](v1::Slice& s) { s.set_count_elements(INT64_MAX); }};
  for (const auto& change : changes) {
    v1::RegisterReply reply = good;
    change(*reply.mutable_partitions(0)->mutable_slices(0));
    EXPECT_TRUE(absl::IsInvalidArgument(
        FromProto(reply.partitions(), layout).status()));
  }
  v1::RegisterReply twice = good;
  *twice.add_partitions() = good.partitions(0);
  EXPECT_FALSE(FromProto(twice.partitions(), layout).ok());
  v1::RegisterReply turned;
  ToProto(MakePartitions(layout, 8), turned.mutable_partitions());
  turned.mutable_partitions()->SwapElements(0, 1);
  EXPECT_FALSE(FromProto(turned.partitions(), layout).ok());
}

TEST(ConvertTest, StatisticsComeBackInAnyOrder) {
  const ModelLayout layout = SmallLayout();
  const std::vector<LayerStatistics> sent = {
      {.mean = {1, 2}, .variance = {3, 4}, .num_batches_tracked = 5},
      {.mean = {6}, .variance = {7}, .num_batches_tracked = 8}};
  v1::PullHeader header;
  ToProto(sent, header.mutable_statistics());
  header.mutable_statistics()->SwapElements(0, 1);
  const auto back = OkValue(FromProto(header.statistics(), layout));
  EXPECT_EQ(back, sent);
  EXPECT_TRUE(FromProto(StatisticsProtos(), layout)->empty());
}

TEST(ConvertTest, StatisticsThatDoNotFitAreRefused) {
  const ModelLayout layout = SmallLayout();
  const std::vector<std::function<void(v1::PullHeader&)>> changes = {
      [](auto& h) { h.mutable_statistics(0)->set_layer(1); },
      [](auto& h) { h.mutable_statistics(0)->set_layer(-1); },
      [](auto& h) { h.mutable_statistics(0)->add_mean(0); },
      [](auto& h) { h.mutable_statistics(0)->clear_variance(); },
      [](auto& h) { h.mutable_statistics(0)->set_variance(0, -1); },
      [](auto& h) { h.mutable_statistics(0)->set_num_batches_tracked(-1); },
      [](auto& h) { h.mutable_statistics()->RemoveLast(); }};
  for (const auto& change : changes) {
    v1::PullHeader header;
    ToProto(InitialStatistics(layout), header.mutable_statistics());
    change(header);
    EXPECT_TRUE(absl::IsInvalidArgument(
        FromProto(header.statistics(), layout).status()));
  }
}

TEST(ConvertTest, OpeningIsChecked) {
  const v1::PushOpening good =
      Encoded<v1::PushOpening>(PushOpening{.samples = 4, .loss_weight = 2.5});
  EXPECT_EQ(FromProto(good)->samples, 4);
  EXPECT_EQ(FromProto(good)->loss_weight, 2.5);
  ExpectRefused<v1::PushOpening>(
      good,
      {{"samples", [](auto& p) { p.set_samples(-1); }},
       {"loss_weight", [](auto& p) { p.set_loss_weight(-1); }},
       {"loss_weight", [](auto& p) { p.set_loss_weight(kNan); }},
       {"gradient_weight", [](auto& p) { p.set_gradient_weight(kNan); }}});
  EXPECT_EQ(FromProto(good)->GradientWeight(), 2.5);
  EXPECT_EQ(FromProto(Encoded<v1::PushOpening>(PushOpening{
                          .loss_weight = 2.5, .gradient_weight = 4}))
                ->GradientWeight(),
            4);
}

TEST(ConvertTest, LearningRatesComeBackToTheBit) {
  const PushOpening sent{.samples = 4, .learning_rates = {0.1, 0, 1e-300}};
  EXPECT_EQ(FromProto(Encoded<v1::PushOpening>(sent))->learning_rates,
            sent.learning_rates);
  EXPECT_TRUE(FromProto(Encoded<v1::PushOpening>(PushOpening()))
                  ->learning_rates.empty());
}

TEST(ConvertTest, NumbersOfTheOptimizerComeBack) {
  const PushOpening sent{
      .numbers = {{.group = 3, .name = "momentum", .value = 1.0 / 3},
                  {.group = 4, .name = "weight_decay", .value = 1e-300}}};
  EXPECT_EQ(FromProto(Encoded<v1::PushOpening>(sent))->numbers, sent.numbers);
}

TEST(ConvertTest, StateAndMeasuresOfTheProgramComeBack) {
  PushClosing sent;
  EXPECT_FALSE(
      FromProto(Encoded<v1::PushClosing>(sent))->front_end_state.has_value());
  // No bytes are a state, too.
  sent.front_end_state = "";
  EXPECT_EQ(FromProto(Encoded<v1::PushClosing>(sent))->front_end_state, "");
  sent.front_end_state = std::string("\0\xff\n", 3);
  sent.measures = {{.name = "a/b", .sum = -0.5, .weight = 2},
                   {.name = "c", .sum = 1e300, .weight = 1}};
  const auto back = OkValue(FromProto(Encoded<v1::PushClosing>(sent)));
  EXPECT_EQ(back.front_end_state, sent.front_end_state);
  EXPECT_EQ(back.measures, sent.measures);
}

TEST(ConvertTest, ClosingComesBackWithADivergedLoss) {
  PushClosing sent;
  sent.loss_sum = kNan;
  sent.correct = 3;
  sent.labels = 4;
  sent.batch_norm_calls = {1, 2};
  sent.contributions = 6;
  sent.moments = {{.layer = 0,
                   .call = 0,
                   .moments = {.count = 4, .first = {1}, .second = {2}}},
                  {.layer = 1,
                   .call = 1,
                   .moments = {.count = 4, .first = {3}, .second = {4}}}};
  const v1::PushClosing good = Encoded<v1::PushClosing>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_TRUE(std::isnan(back.loss_sum));
  EXPECT_EQ(back.correct, 3);
  EXPECT_EQ(back.labels, 4);
  EXPECT_EQ(back.batch_norm_calls, sent.batch_norm_calls);
  EXPECT_EQ(back.contributions, 6);
  ASSERT_EQ(back.moments.size(), 2u);
  EXPECT_EQ(back.moments[1].layer, 1);
  EXPECT_EQ(back.moments[1].call, 1);
  EXPECT_EQ(back.moments[1].moments.count, 4);
  EXPECT_EQ(back.moments[1].moments.first, std::vector<double>{3});
  EXPECT_EQ(back.moments[1].moments.second, std::vector<double>{4});
  ExpectRefused<v1::PushClosing>(
      good,
      {{"correct", [](auto& p) { p.set_correct(5); }},
       {"labels",
        [](auto& p) {
          p.set_labels(-1);
          p.set_correct(0);
        }},
       {"batch_norm_calls", [](auto& p) { p.set_batch_norm_calls(0, -1); }},
       {"contributions", [](auto& p) { p.set_contributions(-1); }},
       {"moments",
        [](auto& p) {
          p.mutable_moments(1)->set_layer(0);
          p.mutable_moments(1)->set_call(0);
        }},
       {"m2", [](auto& p) { p.mutable_moments(0)->add_m2(1); }},
       {"m2", [](auto& p) { p.mutable_moments(0)->set_m2(0, -1); }},
       {"count", [](auto& p) { p.mutable_moments(0)->set_count(-1); }}});
}

TEST(ConvertTest, VerdictComesBackAndIsChecked) {
  for (Verdict verdict :
       {Verdict::kApplied, Verdict::kDamped, Verdict::kSkipped,
        Verdict::kDropped, Verdict::kRejectedNonfinite}) {
    PushVerdict sent{.verdict = verdict,
                     .duplicate = true,
                     .version = Version(3),
                     .staleness_versions = 2,
                     .weight = 0.5,
                     .reason = "late"};
    sent.next = TrainAssignment();
    v1::PushVerdict good;
    ToProto(sent, 7, &good);
    EXPECT_EQ(good.weights_partitions(), 7);
    const auto back = OkValue(FromProto(good));
    EXPECT_EQ(back.verdict, verdict);
    EXPECT_TRUE(back.duplicate);
    EXPECT_EQ(back.version, Version(3));
    EXPECT_EQ(back.staleness_versions, 2);
    EXPECT_EQ(back.weight, 0.5);
    EXPECT_EQ(back.reason, "late");
    ExpectEqual(back.next, TrainAssignment());
    ExpectRefused<v1::PushVerdict>(
        good,
        {{"verdict", [](auto& p) { p.clear_verdict(); }},
         {"version", [](auto& p) { p.set_version(-1); }},
         {"staleness", [](auto& p) { p.set_staleness_versions(-1); }},
         {"weight", [](auto& p) { p.set_weight(kNan); }},
         {"weights_partitions", [](auto& p) { p.set_weights_partitions(-1); }},
         {"kind", [](auto& p) { p.clear_next(); }}});
  }
}

TEST(ConvertTest, KeysComeBackAndAreChecked) {
  const PushKey push{.sequence = Sequence(4), .attempt = Attempt(1)};
  EXPECT_EQ(*FromProto(Encoded<v1::PushKey>(push)), push);
  ExpectRefused<v1::PushKey>(Encoded<v1::PushKey>(push),
                             {{"sequence", [](auto& p) { p.set_sequence(-1); }},
                              {"attempt", [](auto& p) { p.set_attempt(-1); }}});
  for (ReducePhase phase : {ReducePhase::kForward, ReducePhase::kBackward}) {
    const ReduceKey reduce{
        .step = Version(1),
        .attempt = Attempt(2),
        .place = {.part = 5, .layer = 3, .call = 4, .phase = phase}};
    EXPECT_EQ(*FromProto(Encoded<v1::ReduceKey>(reduce)), reduce);
    ExpectRefused<v1::ReduceKey>(
        Encoded<v1::ReduceKey>(reduce),
        {{"step", [](auto& p) { p.set_step(-1); }},
         {"attempt", [](auto& p) { p.set_attempt(-1); }},
         {"layer", [](auto& p) { p.set_layer(-2); }},
         {"site", [](auto& p) { p.set_layer(-1); }},
         {"site", [](auto& p) { p.set_site(std::string(257, 'a')); }},
         {"site", [](auto& p) { p.set_site("a\nb"); }},
         {"part", [](auto& p) { p.set_part(-1); }},
         {"part", [](auto& p) { p.set_part(1 << 20); }},
         {"call", [](auto& p) { p.set_call(-1); }},
         {"call", [](auto& p) { p.set_call((1 << 16) + 1); }},
         {"phase", [](auto& p) { p.clear_phase(); }}});
  }
}

// Only backward passes have visits, and each of them has one name.
TEST(ConvertTest, ThePathToAVisitIsChecked) {
  const ReduceKey key{.place = {.layer = -1,
                                .site = "net.py:attention",
                                .phase = ReducePhase::kBackward,
                                .path = {2, 0, 1}}};
  EXPECT_EQ(*FromProto(Encoded<v1::ReduceKey>(key)), key);
  ExpectRefused<v1::ReduceKey>(
      Encoded<v1::ReduceKey>(key),
      {{"path", [](auto& p) { p.set_path(1, -1); }},
       {"path", [](auto& p) { p.set_phase(v1::REDUCE_PHASE_FORWARD); }},
       {"path", [](auto& p) { p.mutable_path()->Resize(33, 1); }},
       {"path", [](auto& p) {
          p.clear_path();
          p.add_path(0);
        }}});
}

TEST(ConvertTest, ExtentsAreThoseOfAForwardCall) {
  google::protobuf::RepeatedField<int64_t> extents;
  EXPECT_TRUE(ExtentsFrom(ReducePhase::kBackward, extents)->empty());
  extents.Add(7);
  extents.Add(0);
  EXPECT_THAT(*ExtentsFrom(ReducePhase::kForward, extents), ElementsAre(7, 0));
  EXPECT_FALSE(ExtentsFrom(ReducePhase::kBackward, extents).ok());
  extents.Set(1, -1);
  EXPECT_FALSE(ExtentsFrom(ReducePhase::kForward, extents).ok());
  extents.Set(1, 1);
  extents.Resize(65, 1);
  EXPECT_FALSE(ExtentsFrom(ReducePhase::kForward, extents).ok());
}

TEST(ConvertTest, EvaluationSumsAreChecked) {
  const v1::ReportRequest good =
      Encoded<v1::ReportRequest>(EvaluationSums{.samples = 2,
                                                .loss_sum = kNan,
                                                .loss_weight = 2,
                                                .correct = 1,
                                                .labels = 2});
  EXPECT_EQ(FromProto(good)->correct, 1);
  ExpectRefused<v1::ReportRequest>(
      good, {{"samples", [](auto& p) { p.set_samples(-1); }},
             {"loss_weight", [](auto& p) { p.set_loss_weight(kNan); }},
             {"correct", [](auto& p) { p.set_correct(3); }}});
  EXPECT_FALSE(FromProto(good)->top5_correct.has_value());
  EXPECT_TRUE(FromProto(good)->classes.empty());
}

TEST(ConvertTest, MeasuresComeBackAndAreChecked) {
  const EvaluationSums sent{
      .samples = 2,
      .correct = 3,
      .labels = 8,
      .top5_correct = 5,
      .classes = {{.intersection = 2, .predicted = 5, .actual = 4},
                  {.intersection = 1, .predicted = 3, .actual = 4}}};
  const v1::ReportRequest good = Encoded<v1::ReportRequest>(sent);
  const auto back = OkValue(FromProto(good));
  EXPECT_EQ(back.top5_correct, 5);
  EXPECT_EQ(back.classes, sent.classes);
  ExpectRefused<v1::ReportRequest>(
      good, {{"top5_correct", [](auto& p) { p.set_top5_correct(9); }},
             {"classes", [](auto& p) { p.mutable_classes(1)->set_actual(3); }},
             {"classes.predicted",
              [](auto& p) { p.mutable_classes(0)->set_predicted(-1); }}});
}

TEST(ConvertTest, CollectedMomentsComeBackAndAreChecked) {
  const std::vector<CallMoments> sent = {
      {.layer = 0,
       .call = 1,
       .moments = {.count = 4, .first = {1}, .second = {2}}},
      {.layer = 1,
       .call = 0,
       .moments = {.count = 4, .first = {3, 5}, .second = {4, 6}}}};
  v1::CollectedMoments good;
  ToProto(sent, &good);
  const auto back = OkValue(FromProto(good));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].call, 1);
  EXPECT_EQ(back[1].layer, 1);
  EXPECT_EQ(back[1].moments.second, (std::vector<double>{4, 6}));
  ExpectRefused<v1::CollectedMoments>(
      good,
      {{"collected.calls", [](auto& p) { p.mutable_calls(1)->set_layer(0); }},
       {"m2", [](auto& p) { p.mutable_calls(0)->set_m2(0, -1); }}});
}

TEST(ConvertTest, MomentsAreLittleEndianDoublesInTwoHalves) {
  std::string bytes = "left over";
  EncodeMoments({.count = 3, .first = {1, kNan}, .second = {2, 0}}, &bytes);
  // 1.0 is 0x3ff0000000000000.
  EXPECT_EQ(bytes.substr(0, 8), std::string("\0\0\0\0\0\0\xf0\x3f", 8));
  const auto back = OkValue(DecodeMoments(ReducePhase::kForward, 3, bytes));
  EXPECT_EQ(back.count, 3);
  EXPECT_EQ(back.first[0], 1);
  EXPECT_TRUE(std::isnan(back.first[1]));
  EXPECT_EQ(back.second, (std::vector<double>{2, 0}));
}

TEST(ConvertTest, BadMomentsAreRefused) {
  std::string bytes;
  EncodeMoments({.count = 1, .first = {1}, .second = {-2}}, &bytes);
  // Sums of the backward pass may be negative; M2 may not.
  EXPECT_TRUE(DecodeMoments(ReducePhase::kBackward, 1, bytes).ok());
  EXPECT_FALSE(DecodeMoments(ReducePhase::kForward, 1, bytes).ok());
  EXPECT_FALSE(DecodeMoments(ReducePhase::kBackward, -1, bytes).ok());
  bytes.resize(8);
  EXPECT_FALSE(DecodeMoments(ReducePhase::kBackward, 1, bytes).ok());
  EXPECT_TRUE(DecodeMoments(ReducePhase::kForward, 0, "")->first.empty());
}

TEST(ConvertTest, PayloadIsCheckedAgainstItsDescription) {
  const std::vector<std::byte> eight(8, std::byte{1});
  const ByteRope payload = ByteRope::Copy(eight);
  v1::GradientPartition good;
  DescribePayload(payload, &good);
  EXPECT_TRUE(CheckPayload(good, payload, 2).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckPayload(good, payload, 3)));
  v1::GradientPartition other = good;
  other.set_xxh3(good.xxh3() + 1);
  EXPECT_TRUE(absl::IsDataLoss(CheckPayload(other, payload, 2)));
  other.clear_xxh3();
  EXPECT_TRUE(CheckPayload(other, payload, 2).ok());
  for (v1::Encoding encoding : {v1::ENCODING_FLOAT64, v1::ENCODING_BFLOAT16}) {
    other.set_encoding(encoding);
    EXPECT_TRUE(absl::IsInvalidArgument(CheckPayload(other, payload, 2)));
  }
}

TEST(ConvertTest, AChangeIsCheckedAgainstItsDescription) {
  const ByteRope payload = ByteRope::CopyText("abcd");
  v1::WeightsPartition good;
  DescribePayload(payload, &good, ElementType::kBFloat16);
  EXPECT_TRUE(CheckChange(good, payload, 2).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckChange(good, payload, 1)));
  EXPECT_TRUE(
      absl::IsDataLoss(CheckChange(good, ByteRope::CopyText("abce"), 2)));
  good.set_encoding(v1::ENCODING_FLOAT32);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckChange(good, payload, 2)));
}

}  // namespace
}  // namespace cohort
