#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "common/progress_report.h"
#include "common/push.h"
#include "common/wire/framed_message.h"
#include "worker/client/bulk_stream.h"
#include "worker/client/client.h"
#include "worker/client/kept_weights.h"
#include "worker/client/link.h"
#include "worker/client/local_link.h"
#include "worker/client/shard_channels.h"

namespace cohort {

// Parameters.Exchange: a sequence of pushes, and the weights that answer them.
// Weights may arrive at any time after the push was opened, even before its
// verdict; they are not copied.
//
// Errors of every method: Aborted if the step ends early; those of
//   Link::CheckLocked.
class PushStream {
 public:
  struct Options {
    Sender sender;
    // Whether gradients carry checksums. TLS protects them better.
    bool checksums = true;
    // Null if no memory is shared with the server. Must outlive the stream.
    LocalLink* local = nullptr;
    // To the data shards from shard 1 on; see JoinReply.shards.
    std::vector<ShardChannel> data_shards;
  };

  // `link` and `partitions` must outlive the stream.
  PushStream(const std::shared_ptr<grpc::Channel>& channel, Link& link,
             const Options& options, const std::vector<Partition>& partitions);

  // The gradients of the push will be sent as of type `gradients`. `base` are
  // the weights that changes are added to; null, and then no opening may take
  // them, if they are not kept.
  absl::Status Open(const PushKey& key, const PushOpening& opening,
                    ElementType gradients, KeptWeights::Shared base);

  // `gradient` is float32 whatever is sent.
  // Also errors: InvalidArgument if the gradient does not fit the partition;
  //   Unavailable if the server does not release its shared memory.
  absl::Status SendGradient(int32_t partition, const ByteRope& gradient,
                            absl::Span<const int32_t> absent_slices);

  // Blocks until the weights of an update that another one follows have
  // arrived; they are no version's. Also errors: Aborted if the push was
  // decided before its end.
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate();
  // Blocks until the verdict and the weights it announces have arrived.
  absl::StatusOr<PushResult> Close(const PushClosing& closing);
  // Asks again what became of an earlier push. No push may be open.
  absl::StatusOr<PushVerdict> RepeatClosing(const PushKey& key,
                                            const PushClosing& closing);

 private:
  using Reply = FramedMessage<v1::ExchangeReply>;

  // The newest weights of one partition received for the push in progress.
  struct Received {
    Version version;
    ByteRope weights;
  };

  // Answers of this push are kept from now on.
  void Await(const PushKey& key, KeptWeights::Shared base)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  absl::Status SendClosing(const PushClosing& closing);
  absl::Status Send(const v1::ExchangeRequest& request,
                    const ByteRope& payload) {
    return SendTo(stream_, request, payload);
  }
  absl::Status SendTo(BulkStream& stream, const v1::ExchangeRequest& request,
                      const ByteRope& payload);
  // The stream of the shard that owns the partition.
  BulkStream& StreamOf(int32_t partition);
  absl::Status OnMessage(grpc::ByteBuffer& message);
  absl::Status OnWeights(const PushKey& key, Reply& reply);
  // Where the weights of a reply lie: in it, in shared memory, or in a buffer
  // where its change was added to the weights before.
  absl::StatusOr<ByteRope> WeightsOf(Reply& reply, int64_t elements);
  // Empty if the weights that it was meant for are not kept.
  absl::StatusOr<ByteRope> Changed(const Reply& reply, int64_t elements);
  // Copies a gradient into shared memory and tells the server.
  absl::Status SendLocally(int32_t partition, const ByteRope& gradient,
                           v1::ExchangeRequest& request);
  absl::Status OnVerdict(const PushKey& key, const v1::PushVerdict& proto);
  // All that answers the push in progress has arrived, or this update of it.
  bool CompleteLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  bool UpdateHereLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  // The number of trainable partitions.
  int32_t Trainable() const;
  // Errors: InvalidArgument if there is no trainable partition `index`.
  absl::StatusOr<const Partition*> FindTrainable(int32_t index) const;
  // An empty message with sender and key.
  v1::ExchangeRequest NewRequest() const;

  // Fixed after construction.
  Link& link_;
  const Sender sender_;
  const bool checksums_;
  // Null if no memory is shared.
  LocalLink* const local_;
  const std::vector<Partition>& partitions_;

  // Used by the driving thread only: the push in progress.
  std::optional<PushKey> open_;
  ElementType type_ = ElementType::kFloat32;
  // By partition: its gradient is in shared memory. A repetition goes as bytes,
  // because the place is not free before the push is over.
  std::vector<bool> in_arena_;

  // The push in progress, for the reactions, and the answers to it.
  std::optional<PushKey> awaited_ ABSL_GUARDED_BY(link_.mu);
  // One entry a partition.
  std::vector<std::optional<Received>> received_ ABSL_GUARDED_BY(link_.mu);
  // The number of entries of received_ by version.
  std::map<Version, int32_t> versions_ ABSL_GUARDED_BY(link_.mu);
  std::optional<PushVerdict> verdict_ ABSL_GUARDED_BY(link_.mu);
  int32_t weights_announced_ ABSL_GUARDED_BY(link_.mu) = 0;
  bool awaits_update_ ABSL_GUARDED_BY(link_.mu) = false;
  // For the supervisor of this process.
  ProgressReport progress_ ABSL_GUARDED_BY(link_.mu);
  // The weights that the push has read, and their version. Null: not kept.
  KeptWeights::Shared base_ ABSL_GUARDED_BY(link_.mu);
  Version base_version_ ABSL_GUARDED_BY(link_.mu);

  // Synchronises itself.
  FloatBufferPool pool_;

  // Last, so that they are destroyed before the members that their reactions
  // use.
  BulkStream stream_;
  // Gradients to the data shards and weights from them.
  std::vector<std::unique_ptr<BulkStream>> data_streams_;
};

}  // namespace cohort
