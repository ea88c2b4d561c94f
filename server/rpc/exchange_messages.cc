#include "server/rpc/exchange_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"

namespace cohort {

grpc::ByteBuffer EncodeWeights(const WeightsMessage& weights, bool checksums,
                               std::optional<SharedPlace> place) {
  v1::ExchangeReply reply;
  ToProto(weights.key, reply.mutable_key());
  v1::WeightsPartition* to = reply.mutable_weights();
  to->set_partition(weights.partition);
  to->set_version(weights.version.value());
  to->set_encoding(v1::ENCODING_FLOAT32);
  ByteRope payload;
  // The cheapest first. Weights in shared memory have no checksum.
  if (place.has_value()) {
    to->mutable_shared()->set_file(place->file);
    to->mutable_shared()->set_offset(place->offset);
  } else if (weights.change.size_bytes() > 0) {
    to->set_encoding(v1::ENCODING_BFLOAT16);
    // A change leads from the version before to this one.
    to->set_base_version(weights.version.value() - 1);
    if (checksums) to->set_xxh3(weights.change_checksum);
    payload = weights.change;
  } else {
    if (checksums) to->set_xxh3(weights.weights->Checksum());
    payload = RopeOf(weights.weights);
  }
  AddMessageChecksum(&reply);
  return EncodeFramed(reply, payload);
}

absl::StatusOr<ReceivedGradient> DecodeGradient(
    const v1::GradientPartition& proto, ByteRope payload) {
  COHORT_ASSIGN_OR_RETURN(const ElementType type,
                          ElementTypeOf(proto.encoding()));
  ReceivedGradient gradient{
      .about = {.partition = proto.partition(),
                .type = type,
                // However the gradient came: a repetition may come another way.
                .sampled_checksum = payload.SampledChecksum(),
                .absent_slices = {proto.absent_slices().begin(),
                                  proto.absent_slices().end()}}};
  if (proto.has_xxh3()) {
    const uint64_t checksum = payload.Checksum();
    if (proto.xxh3() != checksum) {
      return absl::DataLossError(absl::StrCat(
          "gradient of partition ", proto.partition(), ": got checksum ",
          absl::Hex(checksum), ", want ", absl::Hex(proto.xxh3())));
    }
  }
  gradient.bytes = std::move(payload);
  return gradient;
}

}  // namespace cohort
