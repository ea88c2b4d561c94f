#include "server/rpc/pull_sender.h"

#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"

namespace cohort {

void PullSender::SendPartition() {
  const size_t partition = next_++;
  v1::PullReply reply;
  reply.set_partition(static_cast<int32_t>(partition));
  reply.set_encoding(v1::ENCODING_FLOAT32);
  reply.set_xxh3(weights_[partition]->Checksum());
  AddMessageChecksum(&reply);
  const ByteRope weights = RopeOf(weights_[partition]);
  ServiceCounters::Add(counters_.pull_bytes_float32, weights.size_bytes());
  Send(EncodeFramed(reply, weights));
}

void PullSender::OnGone() { GiveTurns(pulls_.Forget(this, clock_.Now())); }

void PullSender::OnQueueEmpty() {
  while (next_ < weights_.size() && weights_[next_] == nullptr) ++next_;
  if (next_ == weights_.size()) return End(absl::OkStatus());
  GiveTurns(pulls_.Await(this, clock_.Now()));
}

void PullSender::GiveTurns(const PullTable::Turns& turns) {
  for (const std::shared_ptr<PullStream>& pull : turns) pull->SendPartition();
}

absl::Status PullSender::TakePlace(const std::string& connection,
                                   Version version) {
  StreamRegistry::Streams evicted;
  const absl::Status taken =
      pulls_.Admit(std::static_pointer_cast<PullSender>(shared_from_this()),
                   connection, version, clock_.Now(), evicted);
  for (const std::shared_ptr<Stream>& stream : evicted) {
    stream->Cut(
        absl::ResourceExhaustedError("another pull replaced this one because "
                                     "its answers were not being read"));
  }
  return taken;
}

std::string ConnectionOf(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  return absl::StartsWith(peer, "unix") ? "" : peer;
}

}  // namespace cohort
