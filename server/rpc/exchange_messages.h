#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "absl/status/statusor.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "server/partitions/partitions_host.h"
#include "server/streams/streams.h"

// The messages of Parameters.Exchange, at shard 0 and at data shards.
namespace cohort {

// Weights for a worker: at `place` in memory that it shares, or else as bytes,
// with a checksum if `checksums`.
grpc::ByteBuffer EncodeWeights(const WeightsMessage& weights, bool checksums,
                               std::optional<SharedPlace> place = std::nullopt);

// The core checks partition and length, because it knows the layout.
// Errors: InvalidArgument: its encoding; DataLoss: its checksum.
absl::StatusOr<ReceivedGradient> DecodeGradient(
    const v1::GradientPartition& proto, ByteRope payload);

}  // namespace cohort
