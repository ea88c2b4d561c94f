#include "worker/client/reduce_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"

namespace cohort {

ReduceStream::ReduceStream(const std::shared_ptr<grpc::Channel>& channel,
                           Link& link, const Sender& sender)
    : link_(link),
      sender_(sender),
      stub_(v1::Moments::NewStub(channel)),
      stream_({.on_message =
                   [this](v1::ReduceReply& reply) { return OnReply(reply); },
               .on_written = nullptr,
               .on_end =
                   [this](const absl::Status& end) {
                     link_.Break(link_.NormalizedEnd("the rendezvous", end));
                   }}) {
  stream_.Start([this](grpc::ClientContext* context, auto* reactor) {
    // The session is up, so this channel may still be on its way to connect.
    context->set_wait_for_ready(true);
    stub_->async()->Reduce(context, reactor);
  });
}

absl::StatusOr<Moments> ReduceStream::Reduce(const ReduceKey& key,
                                             const Moments& local) {
  request_.Clear();
  ToProto(sender_, request_.mutable_sender());
  ToProto(key, request_.mutable_key());
  request_.set_count(local.count);
  EncodeMoments(local, request_.mutable_values());
  {
    MutexLock lock(link_.mu);
    wanted_ = key;
    result_.reset();
  }
  // A refused write means that the stream is over; the link says how.
  stream_.Write(request_);

  MutexLock lock(link_.mu);
  while (!result_.has_value()) {
    COHORT_RETURN_IF_ERROR(link_.tracker.CheckStep(key.step, key.attempt));
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
  }
  absl::StatusOr<Moments> result = *std::move(result_);
  wanted_.reset();
  result_.reset();
  if (result.ok() && result->first.size() != local.first.size()) {
    return absl::InternalError(
        absl::StrCat(link_.server(), ": got moments of ", result->first.size(),
                     " channels, want ", local.first.size()));
  }
  return result;
}

absl::Status ReduceStream::OnReply(v1::ReduceReply& reply) {
  COHORT_ASSIGN_OR_RETURN(const ReduceKey key, FromProto(reply.key()));
  absl::StatusOr<Moments> result;
  if (!reply.aborted().empty()) {
    result = absl::AbortedError(
        absl::StrCat("step ", key.step.value(), ", attempt ",
                     key.attempt.value(), " ended early: ", reply.aborted()));
  } else {
    COHORT_ASSIGN_OR_RETURN(
        result, DecodeMoments(key.phase, reply.count(), reply.values()));
  }
  {
    MutexLock lock(link_.mu);
    // Answers to what nobody waits for any more belong to an ended step.
    if (wanted_ != key) return absl::OkStatus();
    result_ = std::move(result);
  }
  link_.Notify();
  return absl::OkStatus();
}

}  // namespace cohort
