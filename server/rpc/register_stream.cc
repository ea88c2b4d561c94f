#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"
#include "server/core/membership/initial_values.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/worker_stream.h"

namespace cohort {
namespace {

// One registration: the layout comes in, the run answers, and the worker that
// it has asked sends its initial values. The answer may come long after the
// layout and from any thread, while the client may close its side at any time,
// so what both depend on has a lock.
class RegisterReactor final : public WorkerStream<RegisterStream> {
 public:
  using WorkerStream::WorkerStream;

  void SendAnswer(const absl::StatusOr<RegisterAnswer>& answer) override
      ABSL_LOCKS_EXCLUDED(answer_mu_) {
    if (!answer.ok()) {
      End(answer.status());
      return;
    }
    bool no_more = false;
    {
      MutexLock lock(answer_mu_);
      answer_ = *answer;
      no_more = half_closed_;
    }
    v1::RegisterReply reply;
    ToProto(answer->partitions, reply.mutable_partitions());
    for (int32_t partition : SendOrder(answer->partitions)) {
      reply.add_send_order(partition);
    }
    reply.set_loss_reference(answer->loss_reference);
    reply.set_send_values(answer->send_values);
    reply.set_done(!answer->send_values);
    Send(EncodeReply(reply));
    if (!answer->send_values) {
      End(absl::OkStatus());
    } else if (no_more) {
      End(absl::InvalidArgumentError(
          "register: the request stream ended before the initial values"));
    }
  }

  // The client has closed its side, which it may do while it waits for the
  // answer, or is gone, which OnCancel reports.
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(answer_mu_) {
    if (!ok) {
      std::optional<Sender> waiting;
      bool asked = false;
      {
        MutexLock lock(answer_mu_);
        half_closed_ = true;
        asked = answer_.has_value() && answer_->send_values;
        waiting = waiting_;
      }
      // Another worker must be asked for its values. A stream that a newer one
      // has replaced says nothing about that.
      if (waiting.has_value() && !ended()) run_->RegisterClosed(*waiting);
      // The answer will end the stream, unless values are still expected.
      if (waiting.has_value() && !asked) return;
    }
    WorkerStream::OnReadDone(ok);
  }

  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

 protected:
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(
        FramedMessage<v1::RegisterRequest> framed,
        DecodeFramed<v1::RegisterRequest>(message, kLayoutBytesMax));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&framed.header));
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(framed.header.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller(), sender));
    if (!layout_.has_value()) return OnLayout(framed.header, sender);
    COHORT_RETURN_IF_ERROR(TakeAnswer());
    COHORT_RETURN_IF_ERROR(OnValues(framed.header, framed.payload));
    return missing_ == 0 ? Finish(sender) : run_->RegisterProgress(sender);
  }

  absl::Status OnHalfClose() override ABSL_LOCKS_EXCLUDED(answer_mu_) {
    if (!layout_.has_value()) {
      return absl::InvalidArgumentError(
          "register: the stream was closed without a message, want layout and "
          "plan first");
    }
    COHORT_RETURN_IF_ERROR(TakeAnswer());
    if (missing_ == 0) return absl::OkStatus();
    const auto absent = std::find(values_.begin(), values_.end(), nullptr);
    return absl::InvalidArgumentError(absl::StrCat(
        "register: the stream was closed without partition ",
        absent - values_.begin(), " (", missing_, " of ", values_.size(),
        " partitions are missing), want each once"));
  }

 private:
  absl::Status OnLayout(const v1::RegisterRequest& request,
                        const Sender& sender) ABSL_LOCKS_EXCLUDED(answer_mu_) {
    COHORT_ASSIGN_OR_RETURN(layout_, FromProto(request.layout()));
    COHORT_RETURN_IF_ERROR(CheckModelLimits(*layout_, run_->model_needs()));
    COHORT_ASSIGN_OR_RETURN(plan_, FromProto(request.plan()));
    COHORT_ASSIGN_OR_RETURN(statistics_,
                            FromProto(request.statistics(), *layout_));
    {
      MutexLock lock(answer_mu_);
      waiting_ = sender;
    }
    return run_->BeginRegister(sender, *layout_, plan_, SharedFrom(this));
  }

  // Prepares for the values that the answer requests.
  absl::Status TakeAnswer() ABSL_LOCKS_EXCLUDED(answer_mu_) {
    if (!partitions_.empty()) return absl::OkStatus();
    MutexLock lock(answer_mu_);
    if (!answer_.has_value() || !answer_->send_values) {
      return absl::InvalidArgumentError(
          "register: got a partition that was not requested");
    }
    // The limit is shared by all registrants.
    COHORT_ASSIGN_OR_RETURN(
        reserved_,
        host_.registrations().Take("initial values", WeightBytes(*layout_)));
    partitions_ = answer_->partitions;
    values_.resize(partitions_.size());
    missing_ = values_.size();
    return absl::OkStatus();
  }

  absl::Status OnValues(const v1::RegisterRequest& request,
                        const ByteRope& payload) {
    const int32_t index = request.partition();
    if (index < 0 || static_cast<size_t>(index) >= values_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "register: got partition ", index, ", want below ", values_.size()));
    }
    SharedFloats& place = values_[static_cast<size_t>(index)];
    if (place != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("register: got partition ", index, " twice"));
    }
    const Partition& partition = partitions_[static_cast<size_t>(index)];
    const int64_t elements = partition.elements;
    COHORT_RETURN_IF_ERROR(CheckPayload(request, payload, elements));
    // Copied once, because the values outlive every message and must be
    // aligned.
    auto buffer = std::make_shared<FloatBuffer>(elements);
    payload.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(buffer->data()),
                                  static_cast<size_t>(payload.size_bytes())));
    COHORT_RETURN_IF_ERROR(
        CheckInitialValues(*layout_, partition, buffer->span()));
    place = std::move(buffer);
    --missing_;
    return absl::OkStatus();
  }

  absl::Status Finish(const Sender& sender) {
    COHORT_ASSIGN_OR_RETURN(
        const RegisterAnswer finished,
        run_->FinishRegister(sender, *layout_, plan_, std::move(values_),
                             std::move(statistics_)));
    v1::RegisterReply reply;
    reply.set_loss_reference(finished.loss_reference);
    reply.set_done(true);
    Send(EncodeReply(reply));
    End(absl::OkStatus());
    return absl::OkStatus();
  }

  // RegisterReply has no payload field.
  static grpc::ByteBuffer EncodeReply(v1::RegisterReply& reply) {
    AddMessageChecksum(&reply);
    return EncodeFrame(reply, ByteRope());
  }

  // Used by the reading side only, whose reactions never overlap.
  OneSender one_sender_;
  std::optional<ModelLayout> layout_;
  RunPlan plan_;
  std::vector<LayerStatistics> statistics_;
  std::vector<Partition> partitions_;
  ReservedBytes::Reservation reserved_;
  std::vector<SharedFloats> values_;
  size_t missing_ = 0;

  // The answer may come from any thread, long after the layout.
  Mutex answer_mu_;
  std::optional<Sender> waiting_ ABSL_GUARDED_BY(answer_mu_);
  bool half_closed_ ABSL_GUARDED_BY(answer_mu_) = false;
  std::optional<RegisterAnswer> answer_ ABSL_GUARDED_BY(answer_mu_);
};

}  // namespace

ByteBidiReactor* StartRegister(RunHost& run, const StreamCall& call) {
  return Started<RegisterReactor>(run.partitions(), &run, call);
}

}  // namespace cohort
