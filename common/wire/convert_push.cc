#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/measures/measures.h"
#include "common/printable.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/field_checks.h"

namespace cohort {
namespace {

using wire_internal::CheckNotNegative;
using wire_internal::CheckWeight;
using wire_internal::Refuse;
using wire_internal::ValueFromProto;
using wire_internal::ValueToProto;

static_assert(std::endian::native == std::endian::little,
              "tensors travel as little-endian and are not swapped here");

constexpr std::pair<Verdict, v1::Verdict> kVerdicts[] = {
    {Verdict::kApplied, v1::VERDICT_APPLIED},
    {Verdict::kDamped, v1::VERDICT_DAMPED},
    {Verdict::kSkipped, v1::VERDICT_SKIPPED},
    {Verdict::kDropped, v1::VERDICT_DROPPED},
    {Verdict::kRejectedNonfinite, v1::VERDICT_REJECTED_NONFINITE},
};

absl::Status CheckSecondMoments(const std::vector<double>& m2) {
  for (double value : m2) {
    if (value < 0) return Refuse("m2", value, "at least 0");
  }
  return absl::OkStatus();
}

// Ascending by (layer, call).
absl::Status FillCalls(
    absl::string_view field,
    const google::protobuf::RepeatedPtrField<v1::CallMoments>& protos,
    std::vector<CallMoments>& to) {
  to.reserve(static_cast<size_t>(protos.size()));
  for (const v1::CallMoments& from : protos) {
    COHORT_ASSIGN_OR_RETURN(CallMoments call, FromProto(from));
    if (!to.empty()) {
      const CallMoments& last = to.back();
      if (std::tie(last.layer, last.call) >= std::tie(call.layer, call.call)) {
        return Refuse(
            field,
            absl::StrCat("call ", call.call, " of layer ", call.layer,
                         " after call ", last.call, " of layer ", last.layer),
            "ascending layers and calls");
      }
    }
    to.push_back(std::move(call));
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(int64_t correct, int64_t labels) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("correct", correct));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("labels", labels));
  if (correct > labels) {
    return Refuse("correct", correct,
                  absl::StrCat("at most the ", labels, " labels"));
  }
  return absl::OkStatus();
}

}  // namespace

void ToProto(const PushKey& key, v1::PushKey* proto) {
  proto->set_sequence(key.sequence.value());
  proto->set_attempt(key.attempt.value());
  proto->set_update(key.update);
}

absl::StatusOr<PushKey> FromProto(const v1::PushKey& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("key.sequence", proto.sequence()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("key.attempt", proto.attempt()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("key.update", proto.update()));
  return PushKey{.sequence = Sequence(proto.sequence()),
                 .attempt = Attempt(proto.attempt()),
                 .update = proto.update()};
}

void ToProto(const GroupNumber& number, v1::GroupNumber* proto) {
  proto->set_group(number.group);
  proto->set_name(number.name);
  proto->set_value(number.value);
}

GroupNumber FromProto(const v1::GroupNumber& proto) {
  return {.group = proto.group(), .name = proto.name(), .value = proto.value()};
}

void ToProto(const PushOpening& opening, v1::PushOpening* proto) {
  proto->set_samples(opening.samples);
  proto->set_loss_weight(opening.loss_weight);
  proto->set_version(opening.version.value());
  proto->mutable_learning_rates()->Add(opening.learning_rates.begin(),
                                       opening.learning_rates.end());
  for (const GroupNumber& number : opening.numbers) {
    ToProto(number, proto->add_numbers());
  }
  proto->set_takes_changes(opening.takes_changes);
  proto->set_takes_statistics(opening.takes_statistics);
  if (opening.batch_digest != 0) {
    proto->set_batch_digest(opening.batch_digest);
  }
  if (opening.gradient_weight.has_value()) {
    proto->set_gradient_weight(*opening.gradient_weight);
  }
  proto->set_optimizer(opening.optimizer);
  proto->set_continues(opening.continues);
}

absl::StatusOr<PushOpening> FromProto(const v1::PushOpening& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("opening.samples", proto.samples()));
  COHORT_RETURN_IF_ERROR(
      CheckWeight("opening.loss_weight", proto.loss_weight()));
  COHORT_RETURN_IF_ERROR(
      CheckWeight("opening.gradient_weight", proto.gradient_weight()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("opening.version", proto.version()));
  PushOpening opening{
      .version = Version(proto.version()),
      .samples = proto.samples(),
      .loss_weight = proto.loss_weight(),
      .gradient_weight = proto.has_gradient_weight()
                             ? std::make_optional(proto.gradient_weight())
                             : std::nullopt,
      .learning_rates = {proto.learning_rates().begin(),
                         proto.learning_rates().end()},
      .numbers = {},
      .takes_changes = proto.takes_changes(),
      .takes_statistics = proto.takes_statistics(),
      .batch_digest = proto.batch_digest(),
      .optimizer = proto.optimizer(),
      .continues = proto.continues()};
  for (const v1::GroupNumber& number : proto.numbers()) {
    opening.numbers.push_back(FromProto(number));
  }
  return opening;
}

void ToProto(const CallMoments& call, v1::CallMoments* proto) {
  const Moments& moments = call.moments;
  proto->set_layer(call.layer);
  proto->set_call(call.call);
  proto->set_count(moments.count);
  proto->mutable_mean()->Add(moments.first.begin(), moments.first.end());
  proto->mutable_m2()->Add(moments.second.begin(), moments.second.end());
  proto->set_weight(call.weight);
  proto->set_updates(call.updates);
}

absl::StatusOr<CallMoments> FromProto(const v1::CallMoments& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("moments.layer", proto.layer()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("moments.call", proto.call()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("moments.count", proto.count()));
  if (proto.m2_size() != proto.mean_size()) {
    return Refuse("moments.m2", absl::StrCat(proto.m2_size(), " channels"),
                  absl::StrCat(proto.mean_size()));
  }
  CallMoments to;
  to.layer = proto.layer();
  to.call = proto.call();
  to.moments = {.count = proto.count(),
                .first = {proto.mean().begin(), proto.mean().end()},
                .second = {proto.m2().begin(), proto.m2().end()}};
  COHORT_RETURN_IF_ERROR(CheckSecondMoments(to.moments.second));
  to.weight = proto.weight();
  to.updates = proto.updates();
  COHORT_RETURN_IF_ERROR(CheckNotNegative("moments.updates", to.updates));
  COHORT_RETURN_IF_ERROR(CheckWeight("moments.weight", to.weight));
  return to;
}

namespace {

void ToProto(const LayerChanges& changes, v1::LayerChanges* proto) {
  proto->set_layer(changes.layer);
  for (const TrainingCall& call : changes.calls) {
    v1::TrainingCall* to = proto->add_calls();
    to->set_part(call.part);
    to->set_site(call.site);
    to->set_call(call.call);
    if (call.momentum.has_value()) to->set_momentum(*call.momentum);
    to->set_epsilon(call.epsilon);
    to->set_keeps_statistics(!call.moves);
    to->set_keeps_count(!call.counts);
  }
  for (const StatisticsWrite& write : changes.writes) {
    v1::StatisticsWrite* to = proto->add_writes();
    to->set_after_calls(write.after_calls);
    ToProto(write.values, to->mutable_values());
  }
  proto->mutable_reads()->Add(changes.reads.begin(), changes.reads.end());
}

// Whether the numbers fit the layer is checked where the layers are known.
absl::StatusOr<LayerChanges> FromProto(const v1::LayerChanges& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("changes.layer", proto.layer()));
  LayerChanges to{.layer = proto.layer(),
                  .reads = {proto.reads().begin(), proto.reads().end()}};
  for (const v1::TrainingCall& from : proto.calls()) {
    COHORT_RETURN_IF_ERROR(CheckNotNegative("changes.part", from.part()));
    COHORT_RETURN_IF_ERROR(CheckNotNegative("changes.call", from.call()));
    TrainingCall& call =
        to.calls.emplace_back(TrainingCall{.part = from.part(),
                                           .site = from.site(),
                                           .call = from.call(),
                                           .epsilon = from.epsilon(),
                                           .moves = !from.keeps_statistics(),
                                           .counts = !from.keeps_count()});
    if (from.has_momentum()) call.momentum = from.momentum();
  }
  for (const v1::StatisticsWrite& from : proto.writes()) {
    to.writes.push_back({.after_calls = from.after_calls(),
                         .values = cohort::FromProto(from.values())});
  }
  return to;
}

}  // namespace

void ToProto(const PushClosing& closing, v1::PushClosing* proto) {
  proto->set_loss_sum(closing.loss_sum);
  proto->set_correct(closing.correct);
  proto->set_labels(closing.labels);
  proto->mutable_batch_norm_calls()->Add(closing.batch_norm_calls.begin(),
                                         closing.batch_norm_calls.end());
  for (const CallMoments& call : closing.moments) {
    ToProto(call, proto->add_moments());
  }
  if (closing.front_end_state.has_value()) {
    proto->set_front_end_state(*closing.front_end_state);
  }
  for (const Measure& measure : closing.measures) {
    v1::Measure* to = proto->add_measures();
    to->set_name(measure.name);
    to->set_sum(measure.sum);
    to->set_weight(measure.weight);
  }
  for (const LayerChanges& changes : closing.changes) {
    ToProto(changes, proto->add_changes());
  }
  proto->set_contributions(closing.contributions);
}

absl::StatusOr<PushClosing> FromProto(const v1::PushClosing& proto) {
  COHORT_RETURN_IF_ERROR(CheckLabels(proto.correct(), proto.labels()));
  PushClosing to;
  to.loss_sum = proto.loss_sum();
  to.correct = proto.correct();
  to.labels = proto.labels();
  for (int32_t calls : proto.batch_norm_calls()) {
    COHORT_RETURN_IF_ERROR(CheckNotNegative("closing.batch_norm_calls", calls));
    to.batch_norm_calls.push_back(calls);
  }
  COHORT_RETURN_IF_ERROR(
      FillCalls("closing.moments", proto.moments(), to.moments));
  if (proto.has_front_end_state()) {
    to.front_end_state = proto.front_end_state();
  }
  for (const v1::Measure& measure : proto.measures()) {
    to.measures.push_back({.name = measure.name(),
                           .sum = measure.sum(),
                           .weight = measure.weight()});
  }
  for (const v1::LayerChanges& changes : proto.changes()) {
    COHORT_ASSIGN_OR_RETURN(to.changes.emplace_back(), FromProto(changes));
  }
  COHORT_RETURN_IF_ERROR(
      CheckNotNegative("closing.contributions", proto.contributions()));
  to.contributions = proto.contributions();
  return to;
}

void ToProto(const PushVerdict& verdict, int32_t weights_partitions,
             v1::PushVerdict* proto) {
  proto->set_verdict(ValueToProto(kVerdicts, verdict.verdict));
  proto->set_duplicate(verdict.duplicate);
  proto->set_version(verdict.version.value());
  proto->set_staleness_versions(verdict.staleness_versions);
  proto->set_weight(verdict.weight);
  proto->set_reason(verdict.reason);
  proto->set_weights_partitions(weights_partitions);
  ToProto(verdict.next, proto->mutable_next());
}

absl::StatusOr<PushVerdict> FromProto(const v1::PushVerdict& proto) {
  PushVerdict to;
  COHORT_ASSIGN_OR_RETURN(
      to.verdict,
      ValueFromProto(kVerdicts, "verdict", proto.verdict(), "a known verdict"));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("verdict.version", proto.version()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("verdict.staleness_versions",
                                          proto.staleness_versions()));
  COHORT_RETURN_IF_ERROR(CheckWeight("verdict.weight", proto.weight()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("verdict.weights_partitions",
                                          proto.weights_partitions()));
  COHORT_ASSIGN_OR_RETURN(to.next, FromProto(proto.next()));
  for (const v1::MovingStatistics& from : proto.statistics()) {
    if (from.layer() != static_cast<int32_t>(to.statistics.size()) ||
        from.mean_size() != from.variance_size()) {
      return Refuse("verdict.statistics.layer", from.layer(),
                    "each layer once, in order, with mean and variance");
    }
    to.statistics.push_back(FromProto(from));
  }
  to.duplicate = proto.duplicate();
  to.version = Version(proto.version());
  to.staleness_versions = proto.staleness_versions();
  to.weight = proto.weight();
  to.reason = proto.reason();
  return to;
}

void ToProto(const ReduceKey& key, v1::ReduceKey* proto) {
  const CallPlace& place = key.place;
  proto->set_step(key.step.value());
  proto->set_attempt(key.attempt.value());
  proto->set_part(place.part);
  proto->set_layer(place.layer);
  proto->set_site(place.site);
  proto->set_call(place.call);
  proto->set_phase(place.phase == ReducePhase::kForward
                       ? v1::REDUCE_PHASE_FORWARD
                       : v1::REDUCE_PHASE_BACKWARD);
  proto->mutable_path()->Add(place.path.begin(), place.path.end());
}

namespace {

absl::Status CheckPath(const v1::ReduceKey& proto) {
  if (proto.path_size() == 0) return absl::OkStatus();
  if (proto.phase() != v1::REDUCE_PHASE_BACKWARD) {
    return Refuse("key.path", absl::StrCat(proto.path_size(), " entries"),
                  "none in a forward pass");
  }
  if (proto.path_size() > limits::kCallPathMax) {
    return Refuse("key.path", absl::StrCat(proto.path_size(), " entries"),
                  absl::StrCat("at most ", limits::kCallPathMax));
  }
  for (int32_t entry : proto.path()) {
    COHORT_RETURN_IF_ERROR(CheckNotNegative("key.path", entry));
  }
  // One visit has one name.
  if (proto.path_size() == 1 && proto.path(0) == 0) {
    return Refuse("key.path", "[0]", "an empty path for the first visit");
  }
  return absl::OkStatus();
}

// Fields of the place whose limits do not depend on the model.
absl::Status CheckPlace(const v1::ReduceKey& proto) {
  if (proto.layer() < -1) {
    return Refuse("key.layer", proto.layer(), "at least -1");
  }
  if (proto.part() < 0 || proto.part() >= limits::kStepPartsMax) {
    return Refuse("key.part", proto.part(),
                  absl::StrCat("0 to ", limits::kStepPartsMax - 1));
  }
  if (proto.call() < 0 || proto.call() > limits::kCallsMax) {
    return Refuse("key.call", proto.call(),
                  absl::StrCat("0 to ", limits::kCallsMax));
  }
  if (proto.site().size() > static_cast<size_t>(limits::kCallSiteMax)) {
    return Refuse("key.site", absl::StrCat(proto.site().size(), " bytes"),
                  absl::StrCat("at most ", limits::kCallSiteMax));
  }
  if (!IsPrintable(proto.site())) {
    return Refuse("key.site", Printable(proto.site()), "printable text");
  }
  if (proto.layer() == -1 && proto.site().empty()) {
    return Refuse("key.site", "nothing", "the name of an unregistered call");
  }
  return CheckPath(proto);
}

}  // namespace

absl::StatusOr<ReduceKey> FromProto(const v1::ReduceKey& proto) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("key.step", proto.step()));
  COHORT_RETURN_IF_ERROR(CheckNotNegative("key.attempt", proto.attempt()));
  if (proto.phase() != v1::REDUCE_PHASE_FORWARD &&
      proto.phase() != v1::REDUCE_PHASE_BACKWARD) {
    return Refuse("key.phase", static_cast<int>(proto.phase()),
                  "forward or backward");
  }
  COHORT_RETURN_IF_ERROR(CheckPlace(proto));
  return ReduceKey{
      .step = Version(proto.step()),
      .attempt = Attempt(proto.attempt()),
      .place = {.part = proto.part(),
                .layer = proto.layer(),
                .site = proto.site(),
                .call = proto.call(),
                .phase = proto.phase() == v1::REDUCE_PHASE_FORWARD
                             ? ReducePhase::kForward
                             : ReducePhase::kBackward,
                .path = {proto.path().begin(), proto.path().end()}}};
}

void ToProto(const EvaluationSums& sums, v1::ReportRequest* proto) {
  proto->set_samples(sums.samples);
  proto->set_loss_sum(sums.loss_sum);
  proto->set_loss_weight(sums.loss_weight);
  proto->set_correct(sums.correct);
  proto->set_labels(sums.labels);
  if (sums.top5_correct.has_value()) {
    proto->set_top5_correct(*sums.top5_correct);
  }
  for (const ClassSums& from : sums.classes) {
    v1::ClassSums* to = proto->add_classes();
    to->set_intersection(from.intersection);
    to->set_predicted(from.predicted);
    to->set_actual(from.actual);
  }
}

absl::StatusOr<EvaluationSums> FromProto(const v1::ReportRequest& proto) {
  COHORT_RETURN_IF_ERROR(CheckWeight("loss_weight", proto.loss_weight()));
  EvaluationSums sums{.samples = proto.samples(),
                      .loss_sum = proto.loss_sum(),
                      .loss_weight = proto.loss_weight(),
                      .correct = proto.correct(),
                      .labels = proto.labels()};
  if (proto.has_top5_correct()) sums.top5_correct = proto.top5_correct();
  for (const v1::ClassSums& from : proto.classes()) {
    sums.classes.push_back({.intersection = from.intersection(),
                            .predicted = from.predicted(),
                            .actual = from.actual()});
  }
  COHORT_RETURN_IF_ERROR(Validate(sums));
  return sums;
}

void ToProto(absl::Span<const CallMoments> calls, v1::CollectedMoments* proto) {
  for (const CallMoments& call : calls) ToProto(call, proto->add_calls());
}

absl::StatusOr<std::vector<CallMoments>> FromProto(
    const v1::CollectedMoments& proto) {
  std::vector<CallMoments> calls;
  COHORT_RETURN_IF_ERROR(FillCalls("collected.calls", proto.calls(), calls));
  return calls;
}

void EncodeMoments(const Moments& moments, std::string* bytes) {
  COHORT_CHECK(moments.first.size() == moments.second.size(),
               absl::StrCat("got ", moments.first.size(), " and ",
                            moments.second.size(), " channels"));
  const size_t half = moments.first.size() * sizeof(double);
  bytes->resize(2 * half);
  if (half == 0) return;
  std::memcpy(bytes->data(), moments.first.data(), half);
  std::memcpy(bytes->data() + half, moments.second.data(), half);
}

absl::StatusOr<Moments> DecodeMoments(ReducePhase phase, int64_t count,
                                      absl::string_view bytes) {
  COHORT_RETURN_IF_ERROR(CheckNotNegative("count", count));
  if (bytes.size() % (2 * sizeof(double)) != 0) {
    return Refuse("values", absl::StrCat(bytes.size(), " bytes"),
                  "two float64 per channel");
  }
  const size_t half = bytes.size() / 2;
  const size_t channels = half / sizeof(double);
  Moments moments{.count = count,
                  .first = std::vector<double>(channels),
                  .second = std::vector<double>(channels)};
  if (channels > 0) {
    std::memcpy(moments.first.data(), bytes.data(), half);
    std::memcpy(moments.second.data(), bytes.data() + half, half);
  }
  if (phase == ReducePhase::kForward) {
    COHORT_RETURN_IF_ERROR(CheckSecondMoments(moments.second));
  }
  return moments;
}

absl::StatusOr<std::vector<int64_t>> ExtentsFrom(
    ReducePhase phase, const google::protobuf::RepeatedField<int64_t>& protos) {
  if (protos.empty()) return std::vector<int64_t>();
  if (phase != ReducePhase::kForward ||
      protos.size() > limits::kCallExtentsMax) {
    return Refuse("extents", absl::StrCat(protos.size()),
                  absl::StrCat("at most ", limits::kCallExtentsMax,
                               ", and none in a backward pass"));
  }
  for (int64_t extent : protos) {
    COHORT_RETURN_IF_ERROR(CheckNotNegative("extents", extent));
  }
  return std::vector<int64_t>(protos.begin(), protos.end());
}

namespace {

absl::Status CheckTyped(const PayloadInfo& info, ElementType type,
                        const ByteRope& payload, int64_t elements) {
  if (info.encoding != EncodingOf(type)) {
    return Refuse("encoding", static_cast<int>(info.encoding),
                  type == ElementType::kFloat32 ? "float32" : "bfloat16");
  }
  const int64_t wanted = elements * BytesOf(type);
  if (payload.size_bytes() != wanted) {
    return Refuse("payload", absl::StrCat(payload.size_bytes(), " bytes"),
                  absl::StrCat(wanted));
  }
  if (!info.has_checksum) return absl::OkStatus();
  const uint64_t seen = payload.Checksum();
  if (seen != info.checksum) {
    return absl::DataLossError(absl::StrCat("payload: got checksum ",
                                            absl::Hex(seen), ", want ",
                                            absl::Hex(info.checksum)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPayload(const PayloadInfo& info, const ByteRope& payload,
                          int64_t elements) {
  return CheckTyped(info, ElementType::kFloat32, payload, elements);
}

absl::Status CheckChange(const v1::WeightsPartition& message,
                         const ByteRope& payload, int64_t elements) {
  return CheckTyped({.encoding = message.encoding(),
                     .has_checksum = message.has_xxh3(),
                     .checksum = message.xxh3()},
                    ElementType::kBFloat16, payload, elements);
}

}  // namespace cohort
