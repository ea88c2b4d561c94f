#include "common/wire/convert.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "common/wire/field_checks.h"

namespace cohort {
namespace {

using wire_internal::CheckNotNegative;
using wire_internal::CheckWeight;
using wire_internal::Refuse;
using wire_internal::ValueFromProto;
using wire_internal::ValueToProto;

constexpr std::pair<AssignmentKind, v1::AssignmentKind> kKinds[] = {
    {AssignmentKind::kTrain, v1::ASSIGNMENT_KIND_TRAIN},
    {AssignmentKind::kEvaluate, v1::ASSIGNMENT_KIND_EVALUATE},
    {AssignmentKind::kWait, v1::ASSIGNMENT_KIND_WAIT},
    {AssignmentKind::kFinished, v1::ASSIGNMENT_KIND_FINISHED},
    {AssignmentKind::kCollectMoments, v1::ASSIGNMENT_KIND_COLLECT_MOMENTS},
};

// Fills the local steps; the range is set.
absl::Status FillLocalSteps(const v1::Assignment& proto, Assignment& to) {
  if (proto.local_steps().empty()) return absl::OkStatus();
  int64_t samples = 0;
  for (const v1::SampleRange& step : proto.local_steps()) {
    if (step.begin() < 0 || step.end() < step.begin() ||
        step.end() - step.begin() > to.range.end - samples) {
      return Refuse("assignment.local_steps",
                    absl::StrCat("[", step.begin(), ", ", step.end(), ")"),
                    "0 <= begin <= end, and as many samples as the range");
    }
    samples += step.end() - step.begin();
    to.local_steps.push_back({.begin = step.begin(), .end = step.end()});
  }
  if (to.range.begin != 0 || to.range.end != samples) {
    return Refuse("assignment.range",
                  absl::StrCat("[", to.range.begin, ", ", to.range.end, ")"),
                  absl::StrCat("[0, ", samples, "), as the local steps"));
  }
  to.local_rate_factor = proto.local_rate_factor();
  return CheckWeight("assignment.local_rate_factor", to.local_rate_factor);
}

// Fills members and range; the kind of `to` is already set.
absl::Status FillWork(const v1::Assignment& proto, Assignment& to) {
  std::vector<Rank> members;
  members.reserve(static_cast<size_t>(proto.members_size()));
  for (int32_t rank : proto.members()) {
    COHORT_RETURN_IF_ERROR(CheckNotNegative("assignment.members", rank));
    if (!members.empty() && members.back().value() >= rank) {
      return Refuse("assignment.members", rank, "ascending ranks");
    }
    members.push_back(Rank(rank));
  }
  to.members = std::move(members);
  if (proto.range_begin() < 0 || proto.range_end() < proto.range_begin()) {
    return Refuse(
        "assignment.range",
        absl::StrCat("[", proto.range_begin(), ", ", proto.range_end(), ")"),
        "0 <= begin <= end");
  }
  to.range = {.begin = proto.range_begin(), .end = proto.range_end()};
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.batches", proto.batches()));
  to.batches = std::max(1, proto.batches());
  COHORT_RETURN_IF_ERROR(FillLocalSteps(proto, to));
  const bool works =
      to.kind != AssignmentKind::kWait && to.kind != AssignmentKind::kFinished;
  switch (proto.split()) {
    case v1::DATA_SPLIT_TRAIN:
      to.split = DataSplit::kTrain;
      return absl::OkStatus();
    case v1::DATA_SPLIT_TEST:
      to.split = DataSplit::kTest;
      return absl::OkStatus();
    default:
      // kWait and kFinished read no data.
      if (!works) return absl::OkStatus();
      return Refuse("assignment.split", static_cast<int>(proto.split()),
                    "train or test");
  }
}

absl::StatusOr<BatchNormSpec> BatchNormFromProto(
    const v1::BatchNormSpec& proto) {
  BatchNormSpec bn;
  bn.name = proto.name();
  bn.channels = proto.channels();
  bn.epsilon = proto.epsilon();
  bn.momentum = std::nullopt;
  if (proto.has_momentum()) bn.momentum = proto.momentum();
  bn.affine = proto.affine();
  bn.track_statistics = proto.track_statistics();
  if (proto.convention() != v1::STATISTICS_CONVENTION_PYTORCH &&
      proto.convention() != v1::STATISTICS_CONVENTION_KERAS) {
    return Refuse(absl::StrCat(proto.name(), ": convention"),
                  static_cast<int>(proto.convention()), "pytorch or keras");
  }
  bn.convention = proto.convention() == v1::STATISTICS_CONVENTION_KERAS
                      ? StatisticsConvention::kKeras
                      : StatisticsConvention::kPyTorch;
  return bn;
}

}  // namespace

void ToProto(const Sender& sender, v1::Sender* proto) {
  proto->set_run_id(sender.run_id);
  proto->set_rank(sender.rank.value());
  proto->set_incarnation(sender.incarnation.value());
}

absl::StatusOr<Sender> FromProto(const v1::Sender& proto) {
  if (proto.run_id().empty()) {
    return Refuse("sender.run_id", "none", "the run's identifier");
  }
  COHORT_RETURN_IF_ERROR(CheckNotNegative("sender.rank", proto.rank()));
  if (proto.incarnation() <= 0) {
    return Refuse("sender.incarnation", proto.incarnation(), "above 0");
  }
  return Sender{.run_id = proto.run_id(),
                .rank = Rank(proto.rank()),
                .incarnation = Incarnation(proto.incarnation())};
}

void ToProto(const Assignment& assignment, v1::Assignment* proto) {
  proto->set_kind(ValueToProto(kKinds, assignment.kind));
  proto->set_sequence(assignment.sequence.value());
  proto->set_attempt(assignment.attempt.value());
  proto->set_version(assignment.version.value());
  proto->set_policy_epoch(assignment.policy_epoch);
  for (Rank rank : assignment.members) proto->add_members(rank.value());
  proto->set_data_epoch(assignment.data_epoch);
  proto->set_range_begin(assignment.range.begin);
  proto->set_range_end(assignment.range.end);
  proto->set_batches(assignment.batches);
  for (const IndexRange& step : assignment.local_steps) {
    v1::SampleRange* to = proto->add_local_steps();
    to->set_begin(step.begin);
    to->set_end(step.end);
  }
  if (!assignment.local_steps.empty()) {
    proto->set_local_rate_factor(assignment.local_rate_factor);
  }
  // Not for float32: a worker of an older release would find an unknown field.
  if (assignment.gradients != ElementType::kFloat32) {
    proto->set_gradient_encoding(EncodingOf(assignment.gradients));
  }
  proto->set_split(assignment.split == DataSplit::kTrain ? v1::DATA_SPLIT_TRAIN
                                                         : v1::DATA_SPLIT_TEST);
  proto->set_global_normalization(assignment.global_normalization);
  proto->set_reason(assignment.reason);
  proto->set_unfinished(assignment.unfinished);
  proto->set_failed(assignment.failed);
  proto->set_statistics_kind(assignment.statistics);
  proto->set_moves_statistics(assignment.moves_statistics);
  if (assignment.wait < absl::InfiniteDuration()) {
    proto->set_wait_ms(
        std::max<int64_t>(1, absl::ToInt64Milliseconds(assignment.wait)));
  }
  if (assignment.score.has_value()) {
    ToProto(*assignment.score, proto->mutable_score());
  }
}

void ToProto(const Score& score, v1::Score* proto) {
  proto->set_version(score.version.value());
  proto->set_epochs(score.epochs);
  proto->set_loss(score.loss);
  if (score.accuracy.has_value()) proto->set_accuracy(*score.accuracy);
  if (score.mean_iou.has_value()) proto->set_mean_iou(*score.mean_iou);
}

absl::StatusOr<Score> FromProto(const v1::Score& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("score.version", proto.version()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("score.epochs", proto.epochs()));
  Score score{.version = Version(proto.version()),
              .epochs = proto.epochs(),
              .loss = proto.loss()};
  if (proto.has_accuracy()) score.accuracy = proto.accuracy();
  if (proto.has_mean_iou()) score.mean_iou = proto.mean_iou();
  return score;
}

absl::StatusOr<Assignment> FromProto(const v1::Assignment& proto) {
  Assignment to;
  COHORT_ASSIGN_OR_RETURN(
      to.kind,
      ValueFromProto(kKinds, "assignment.kind", proto.kind(), "a known kind"));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.sequence", proto.sequence()));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.attempt", proto.attempt()));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.version", proto.version()));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.policy_epoch", proto.policy_epoch()));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.data_epoch", proto.data_epoch()));
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("assignment.wait_ms", proto.wait_ms()));
  COHORT_RETURN_IF_ERROR(FillWork(proto, to));
  to.sequence = Sequence(proto.sequence());
  to.attempt = Attempt(proto.attempt());
  to.version = Version(proto.version());
  to.policy_epoch = proto.policy_epoch();
  to.data_epoch = proto.data_epoch();
  to.global_normalization = proto.global_normalization();
  // The server takes float32 whatever a newer one may have asked for.
  to.gradients = proto.gradient_encoding() == v1::ENCODING_BFLOAT16
                     ? ElementType::kBFloat16
                     : ElementType::kFloat32;
  to.reason = proto.reason();
  to.unfinished = proto.unfinished();
  to.failed = proto.failed();
  to.statistics = proto.statistics_kind();
  to.moves_statistics = proto.moves_statistics();
  if (proto.wait_ms() > 0) to.wait = absl::Milliseconds(proto.wait_ms());
  if (proto.has_score()) {
    COHORT_ASSIGN_OR_RETURN(to.score, FromProto(proto.score()));
  }
  return to;
}

void ToProto(const ModelLayout& layout, v1::ModelLayout* proto) {
  for (const ParameterSpec& from : layout.parameters) {
    v1::ParameterSpec* to = proto->add_parameters();
    to->set_name(from.name);
    to->mutable_shape()->Add(from.shape.begin(), from.shape.end());
    to->set_trainable(from.trainable);
    to->set_decay_exempt(from.decay_exempt);
    if (from.rate_multiplier != 1) {
      to->set_rate_multiplier(from.rate_multiplier);
    }
    if (from.decay_multiplier != 1) {
      to->set_decay_multiplier(from.decay_multiplier);
    }
    to->set_rate_group(from.rate_group);
  }
  for (const BatchNormSpec& from : layout.batch_norms) {
    v1::BatchNormSpec* to = proto->add_batch_norms();
    to->set_name(from.name);
    to->set_channels(from.channels);
    to->set_epsilon(from.epsilon);
    if (from.momentum.has_value()) to->set_momentum(*from.momentum);
    to->set_affine(from.affine);
    to->set_track_statistics(from.track_statistics);
    to->set_convention(from.convention == StatisticsConvention::kPyTorch
                           ? v1::STATISTICS_CONVENTION_PYTORCH
                           : v1::STATISTICS_CONVENTION_KERAS);
  }
}

absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto) {
  ModelLayout layout;
  layout.parameters.reserve(static_cast<size_t>(proto.parameters_size()));
  for (const v1::ParameterSpec& from : proto.parameters()) {
    layout.parameters.push_back(
        {.name = from.name(),
         .shape = {from.shape().begin(), from.shape().end()},
         .trainable = from.trainable(),
         .decay_exempt = from.decay_exempt(),
         .rate_multiplier =
             from.has_rate_multiplier() ? from.rate_multiplier() : 1,
         .decay_multiplier =
             from.has_decay_multiplier() ? from.decay_multiplier() : 1,
         .rate_group = from.rate_group()});
  }
  layout.batch_norms.reserve(static_cast<size_t>(proto.batch_norms_size()));
  for (const v1::BatchNormSpec& from : proto.batch_norms()) {
    COHORT_ASSIGN_OR_RETURN(BatchNormSpec bn, BatchNormFromProto(from));
    layout.batch_norms.push_back(std::move(bn));
  }
  COHORT_RETURN_IF_ERROR(Validate(layout));
  return layout;
}

void ToProto(const RunPlan& plan, v1::RunPlan* proto) {
  proto->set_dataset(plan.dataset);
  proto->set_dataset_digest(plan.dataset_digest);
  proto->set_train_samples(plan.train_samples);
  proto->set_test_samples(plan.test_samples);
  proto->set_loss_reference(plan.loss_reference);
  proto->set_loss(plan.loss);
  proto->set_own_data(plan.own_data);
  proto->set_local_optimizer(plan.local_optimizer);
  proto->set_rates_by_workers(plan.rates_by_workers);
  proto->set_awaits_scores(plan.awaits_scores);
  for (const auto& [name, value] : plan.optimizer) {
    v1::OptimizerSetting* setting = proto->add_optimizer();
    setting->set_name(name);
    setting->set_value(value);
  }
}

absl::StatusOr<RunPlan> FromProto(const v1::RunPlan& proto) {
  RunPlan plan{.dataset = proto.dataset(),
               .dataset_digest = proto.dataset_digest(),
               .train_samples = proto.train_samples(),
               .test_samples = proto.test_samples(),
               .loss_reference = proto.loss_reference(),
               .loss = proto.loss(),
               .own_data = proto.own_data(),
               .rates_by_workers = proto.rates_by_workers(),
               .local_optimizer = proto.local_optimizer(),
               .awaits_scores = proto.awaits_scores()};
  for (const v1::OptimizerSetting& setting : proto.optimizer()) {
    if (!plan.optimizer.emplace(setting.name(), setting.value()).second) {
      return Refuse("plan.optimizer",
                    absl::StrCat("'", setting.name(), "' twice"),
                    "each setting once");
    }
  }
  COHORT_RETURN_IF_ERROR(Validate(plan));
  return plan;
}

void ToProto(absl::Span<const Partition> partitions, PartitionProtos* protos) {
  for (const Partition& from : partitions) {
    v1::Partition* to = protos->Add();
    to->set_trainable(from.trainable);
    for (const Slice& slice : from.slices) {
      v1::Slice* piece = to->add_slices();
      piece->set_parameter(slice.parameter);
      piece->set_offset_elements(slice.offset);
      piece->set_count_elements(slice.count);
    }
  }
}

absl::StatusOr<std::vector<Partition>> FromProto(const PartitionProtos& protos,
                                                 const ModelLayout& layout) {
  const std::vector<ParameterSpec>& parameters = layout.parameters;
  std::vector<Partition> partitions;
  partitions.reserve(static_cast<size_t>(protos.size()));
  // Where the next slice begins.
  size_t parameter = 0;
  int64_t offset = 0;
  for (const v1::Partition& from : protos) {
    Partition to{.trainable = from.trainable()};
    for (const v1::Slice& slice : from.slices()) {
      const int64_t rest = parameter < parameters.size()
                               ? ElementCount(parameters[parameter]) - offset
                               : 0;
      const int64_t count = slice.count_elements();
      if (slice.parameter() != static_cast<int64_t>(parameter) ||
          slice.offset_elements() != offset || count <= 0 || count > rest ||
          to.trainable != parameters[parameter].trainable) {
        return Refuse(
            "partitions",
            absl::StrCat(count, " elements from ", slice.offset_elements(),
                         " of parameter ", slice.parameter(), ", trainable ",
                         to.trainable),
            absl::StrCat("each element once, next ", rest, " from ", offset,
                         " of parameter ", parameter));
      }
      to.slices.push_back(
          {.parameter = slice.parameter(), .offset = offset, .count = count});
      to.elements += count;
      parameter += count == rest ? 1 : 0;
      offset = count == rest ? 0 : offset + count;
    }
    if (to.slices.empty()) {
      return Refuse("partitions", "one without elements", "at least one each");
    }
    partitions.push_back(std::move(to));
  }
  if (parameter != parameters.size()) {
    return Refuse("partitions", absl::StrCat(parameter, " parameters"),
                  absl::StrCat(parameters.size()));
  }
  return partitions;
}

void ToProto(const RegisteredModel& model, v1::RegisteredModel* proto) {
  ToProto(model.layout, proto->mutable_layout());
  ToProto(model.partitions, proto->mutable_partitions());
  ToProto(model.plan, proto->mutable_plan());
}

absl::StatusOr<RegisteredModel> FromProto(const v1::RegisteredModel& proto) {
  RegisteredModel model;
  COHORT_ASSIGN_OR_RETURN(model.layout, FromProto(proto.layout()));
  COHORT_ASSIGN_OR_RETURN(model.partitions,
                          FromProto(proto.partitions(), model.layout));
  COHORT_ASSIGN_OR_RETURN(model.plan, FromProto(proto.plan()));
  return model;
}

void ToProto(const LayerStatistics& values, v1::MovingStatistics* proto) {
  proto->mutable_mean()->Add(values.mean.begin(), values.mean.end());
  proto->mutable_variance()->Add(values.variance.begin(),
                                 values.variance.end());
  proto->set_num_batches_tracked(values.num_batches_tracked);
}

LayerStatistics FromProto(const v1::MovingStatistics& proto) {
  return {.mean = {proto.mean().begin(), proto.mean().end()},
          .variance = {proto.variance().begin(), proto.variance().end()},
          .num_batches_tracked = proto.num_batches_tracked()};
}

void ToProto(absl::Span<const LayerStatistics> statistics,
             StatisticsProtos* protos) {
  for (const LayerStatistics& from : statistics) {
    const int32_t layer = protos->size();
    v1::MovingStatistics* to = protos->Add();
    to->set_layer(layer);
    ToProto(from, to);
  }
}

absl::StatusOr<std::vector<LayerStatistics>> FromProto(
    const StatisticsProtos& protos, const ModelLayout& layout) {
  if (protos.empty()) return std::vector<LayerStatistics>();
  const size_t layers = layout.batch_norms.size();
  if (static_cast<size_t>(protos.size()) != layers) {
    return Refuse("statistics", absl::StrCat(protos.size(), " layers"),
                  absl::StrCat(layers));
  }
  std::vector<LayerStatistics> statistics(layers);
  std::vector<bool> seen(layers, false);
  for (const v1::MovingStatistics& from : protos) {
    const auto layer = static_cast<size_t>(from.layer());
    if (from.layer() < 0 || layer >= layers || seen[layer]) {
      return Refuse("statistics.layer", from.layer(),
                    absl::StrCat("each index below ", layers, " once"));
    }
    seen[layer] = true;
    statistics[layer] = FromProto(from);
  }
  COHORT_RETURN_IF_ERROR(Validate(statistics, layout));
  return statistics;
}

}  // namespace cohort
