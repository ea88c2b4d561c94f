#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "common/status_macros.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/reduce_messages.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/worker_stream.h"

namespace cohort {
namespace {

class ReduceReactor final : public WorkerStream<ReduceStream> {
 public:
  using WorkerStream::WorkerStream;

  void SendResults(absl::Span<const effect::ReduceResult* const> results,
                   EncodedResults& encoded) override {
    // Relaxed: no other data is published with it, and a request is read before
    // there can be a result for it.
    const bool together = takes_further_.load(std::memory_order_relaxed);
    const size_t each = together ? results.size() : 1;
    for (size_t i = 0; i < results.size(); i += each) {
      Send(EncodeResults(results.subspan(i, each), encoded));
    }
  }

  void SendAborted(const effect::ReduceAborted& aborted) override {
    v1::ReduceReply reply = ReplyFor(aborted);
    SendMessage(reply);
  }

 protected:
  absl::Status OnMessage(const grpc::ByteBuffer& bytes) override {
    COHORT_ASSIGN_OR_RETURN(v1::ReduceRequest request,
                            DecodeMessage<v1::ReduceRequest>(bytes));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    COHORT_ASSIGN_OR_RETURN(ReduceMessage message, ReduceMessageFrom(request));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller(), message.sender));
    takes_further_.store(message.takes_further, std::memory_order_relaxed);
    return run_->Reduce(message.sender, std::move(message.contributions),
                        SharedFrom(this));
  }

 private:
  // Whether the client reads ReduceReply.further, as its newest request says.
  std::atomic<bool> takes_further_ = false;
  // Used by the reading side only.
  OneSender one_sender_;
};

}  // namespace

ByteBidiReactor* StartReduce(RunHost& run, const StreamCall& call) {
  return Started<ReduceReactor>(run.partitions(), &run, call);
}

}  // namespace cohort
