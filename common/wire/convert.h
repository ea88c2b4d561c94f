#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "cohort/v1/parameters.pb.h"
#include "cohort/v1/types.pb.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/evaluation_sums.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/wire/encoding.h"

// Converts domain types to and from the generated ones. Only this folder, the
// two gRPC adapters and server/checkpoint use generated types.
//
// ToProto writes every field of `proto`, which must be empty. FromProto checks
// everything it can without knowing the run. Errors of every FromProto:
// InvalidArgument naming the field, the value seen and the value wanted.
namespace cohort {

using PartitionProtos = google::protobuf::RepeatedPtrField<v1::Partition>;
using StatisticsProtos =
    google::protobuf::RepeatedPtrField<v1::MovingStatistics>;

void ToProto(const Sender& sender, v1::Sender* proto);
absl::StatusOr<Sender> FromProto(const v1::Sender& proto);

void ToProto(const Score& score, v1::Score* proto);
absl::StatusOr<Score> FromProto(const v1::Score& proto);

// A finite wait below one millisecond becomes 1 ms: 0 means unbounded.
void ToProto(const Assignment& assignment, v1::Assignment* proto);
absl::StatusOr<Assignment> FromProto(const v1::Assignment& proto);

void ToProto(const ModelLayout& layout, v1::ModelLayout* proto);
// Errors also: those of Validate(ModelLayout).
absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto);

void ToProto(const RunPlan& plan, v1::RunPlan* proto);
// Errors also: those of Validate(RunPlan).
absl::StatusOr<RunPlan> FromProto(const v1::RunPlan& proto);

void ToProto(absl::Span<const Partition> partitions, PartitionProtos* protos);
// Also checks that they hold every element of every parameter of `layout` once,
// in its order.
absl::StatusOr<std::vector<Partition>> FromProto(const PartitionProtos& protos,
                                                 const ModelLayout& layout);

void ToProto(const RegisteredModel& model, v1::RegisteredModel* proto);
absl::StatusOr<RegisteredModel> FromProto(const v1::RegisteredModel& proto);

// Without the index of the layer.
void ToProto(const LayerStatistics& values, v1::MovingStatistics* proto);
LayerStatistics FromProto(const v1::MovingStatistics& proto);

void ToProto(absl::Span<const LayerStatistics> statistics,
             StatisticsProtos* protos);
// Either empty, or exactly one entry a layer of `layout`, in any order.
absl::StatusOr<std::vector<LayerStatistics>> FromProto(
    const StatisticsProtos& protos, const ModelLayout& layout);

void ToProto(const PushKey& key, v1::PushKey* proto);
absl::StatusOr<PushKey> FromProto(const v1::PushKey& proto);

void ToProto(const GroupNumber& number, v1::GroupNumber* proto);
GroupNumber FromProto(const v1::GroupNumber& proto);

void ToProto(const PushOpening& opening, v1::PushOpening* proto);
absl::StatusOr<PushOpening> FromProto(const v1::PushOpening& proto);

void ToProto(const CallMoments& call, v1::CallMoments* proto);
absl::StatusOr<CallMoments> FromProto(const v1::CallMoments& proto);

void ToProto(const PushClosing& closing, v1::PushClosing* proto);
// The moments must be ascending by (layer, call). The loss may be anything: a
// diverged run is reported, not refused.
absl::StatusOr<PushClosing> FromProto(const v1::PushClosing& proto);

// PushVerdict has no field for `weights_partitions`: callers of FromProto read
// it from the message, where it has been checked to be non-negative.
void ToProto(const PushVerdict& verdict, int32_t weights_partitions,
             v1::PushVerdict* proto);
absl::StatusOr<PushVerdict> FromProto(const v1::PushVerdict& proto);

void ToProto(const ReduceKey& key, v1::ReduceKey* proto);
absl::StatusOr<ReduceKey> FromProto(const v1::ReduceKey& proto);

// Writes the counts of `proto`; does not change sender and sequence.
void ToProto(const EvaluationSums& sums, v1::ReportRequest* proto);
absl::StatusOr<EvaluationSums> FromProto(const v1::ReportRequest& proto);

void ToProto(absl::Span<const CallMoments> calls, v1::CollectedMoments* proto);
// The calls must be ascending by (layer, call).
absl::StatusOr<std::vector<CallMoments>> FromProto(
    const v1::CollectedMoments& proto);

// Encodes `first`, then `second`, as little-endian float64; replaces `bytes`.
// Both must have the same length (a caller bug otherwise).
void EncodeMoments(const Moments& moments, std::string* bytes);
// Errors: InvalidArgument if the length is not a multiple of 16, the count is
//   negative, or a forward M2 is negative. NaN passes: the server decides what
//   to do with it.
absl::StatusOr<Moments> DecodeMoments(ReducePhase phase, int64_t count,
                                      absl::string_view bytes);

// The extents of a contribution.
// Errors: InvalidArgument if one is negative, there are more than
//   limits::kCallExtentsMax, or the phase is not forward.
absl::StatusOr<std::vector<int64_t>> ExtentsFrom(
    ReducePhase phase, const google::protobuf::RepeatedField<int64_t>& protos);

// A message's description of its payload.
struct PayloadInfo {
  v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  bool has_checksum = false;
  uint64_t checksum = 0;
};

// For all payloads but gradients, which may have another encoding.
// Errors: InvalidArgument if the encoding is not float32 or the payload does
//   not hold `elements` floats; DataLoss if the checksum differs.
absl::Status CheckPayload(const PayloadInfo& info, const ByteRope& payload,
                          int64_t elements);

// CheckPayload for any message with the fields `encoding` and `xxh3`.
template <typename Message>
absl::Status CheckPayload(const Message& message, const ByteRope& payload,
                          int64_t elements) {
  return CheckPayload(PayloadInfo{.encoding = message.encoding(),
                                  .has_checksum = message.has_xxh3(),
                                  .checksum = message.xxh3()},
                      payload, elements);
}

// The same for a change of weights, which must be in bfloat16.
absl::Status CheckChange(const v1::WeightsPartition& message,
                         const ByteRope& payload, int64_t elements);

// Declares `payload` as of this type and sets its checksum.
template <typename Message>
void DescribePayload(const ByteRope& payload, Message* message,
                     ElementType type = ElementType::kFloat32) {
  message->set_encoding(EncodingOf(type));
  message->set_xxh3(payload.Checksum());
}

}  // namespace cohort
