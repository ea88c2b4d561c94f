#include "worker/client/reduce_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"

namespace cohort {
namespace {

ReduceKey KeyOf(const ReducePass& pass, const CallMoments& of) {
  return {.step = pass.step,
          .attempt = pass.attempt,
          .layer = of.layer,
          .call = of.call,
          .phase = pass.phase};
}

// `Proto` is a request or a part of one.
template <typename Proto>
void Describe(const ReducePass& pass, const CallMoments& local, Proto& proto) {
  ToProto(KeyOf(pass, local), proto.mutable_key());
  proto.set_count(local.moments.count);
  EncodeMoments(local.moments, proto.mutable_values());
}

}  // namespace

ReduceClient::ReduceClient(const std::shared_ptr<grpc::Channel>& channel,
                           Link& link, Options options)
    : link_(link),
      options_(std::move(options)),
      stub_(channel),
      stream_({.on_message =
                   [this](v1::ReduceReply& reply) { return OnReply(reply); },
               .on_written = nullptr,
               .on_end =
                   [this](const absl::Status& end) {
                     link_.Break(link_.NormalizedEnd("the rendezvous", end));
                   }}) {
  stream_.Start([this](grpc::ClientContext* context, auto* reactor) {
    // The session is up, but this channel may still be connecting.
    context->set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(context, "/cohort.v1.Moments/Reduce", {},
                                   reactor);
  });
}

absl::StatusOr<std::vector<Moments>> ReduceClient::Reduce(
    const ReducePass& pass, absl::Span<const CallMoments> local) {
  if (local.empty()) return std::vector<Moments>();
  {
    MutexLock lock(link_.mu);
    wanted_.clear();
    for (const CallMoments& call : local) {
      wanted_.push_back({.key = KeyOf(pass, call)});
    }
    open_ = local.size();
    aborted_ = absl::OkStatus();
  }
  // An old server accepts and answers contributions one by one.
  const size_t each = options_.together ? local.size() : 1;
  for (size_t i = 0; i < local.size(); i += each) {
    Send(pass, local.subspan(i, each));
  }

  std::vector<Moments> results;
  MutexLock lock(link_.mu);
  COHORT_RETURN_IF_ERROR(AwaitLocked(pass));
  for (size_t i = 0; i < local.size(); ++i) {
    Moments& result = *wanted_[i].result;
    const size_t channels = local[i].moments.first.size();
    if (result.first.size() != channels) {
      return absl::InternalError(
          absl::StrCat(link_.server(), ": got moments of ", result.first.size(),
                       " channels, want ", channels));
    }
    results.push_back(std::move(result));
  }
  wanted_.clear();
  return results;
}

void ReduceClient::Send(const ReducePass& pass,
                        absl::Span<const CallMoments> local) {
  request_.Clear();
  ToProto(options_.sender, request_.mutable_sender());
  request_.set_takes_further_results(true);
  Describe(pass, local.front(), request_);
  for (const CallMoments& further : local.subspan(1)) {
    Describe(pass, further, *request_.add_further());
  }
  AddMessageChecksum(&request_);
  // A refused write means that the stream has ended; the link holds the reason.
  stream_.Write(request_);
}

absl::Status ReduceClient::AwaitLocked(const ReducePass& pass) {
  while (open_ > 0) {
    COHORT_RETURN_IF_ERROR(aborted_);
    COHORT_RETURN_IF_ERROR(link_.tracker.CheckStep(pass.step, pass.attempt));
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
  }
  return absl::OkStatus();
}

absl::Status ReduceClient::OnReply(v1::ReduceReply& reply) {
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&reply));
  bool changed = false;
  if (reply.aborted().empty()) {
    COHORT_ASSIGN_OR_RETURN(changed, Take(reply));
  } else {
    COHORT_ASSIGN_OR_RETURN(const ReduceKey key, FromProto(reply.key()));
    MutexLock lock(link_.mu);
    changed = FindLocked(key) != nullptr;
    if (changed) {
      aborted_ = absl::AbortedError(
          absl::StrCat("step ", key.step.value(), ", attempt ",
                       key.attempt.value(), " ended early: ", reply.aborted()));
    }
  }
  for (const v1::ReducePart& part : reply.further()) {
    COHORT_ASSIGN_OR_RETURN(const bool last, Take(part));
    changed = changed || last;
  }
  if (changed) link_.Notify();
  return absl::OkStatus();
}

template <typename Proto>
absl::StatusOr<bool> ReduceClient::Take(const Proto& proto) {
  COHORT_ASSIGN_OR_RETURN(const ReduceKey key, FromProto(proto.key()));
  COHORT_ASSIGN_OR_RETURN(
      Moments result, DecodeMoments(key.phase, proto.count(), proto.values()));
  MutexLock lock(link_.mu);
  Wanted* const wanted = FindLocked(key);
  if (wanted == nullptr) return false;
  wanted->result = std::move(result);
  return --open_ == 0;
}

ReduceClient::Wanted* ReduceClient::FindLocked(const ReduceKey& key) {
  const auto wanted =
      std::find_if(wanted_.begin(), wanted_.end(), [&key](const Wanted& w) {
        return w.key == key && !w.result.has_value();
      });
  return wanted == wanted_.end() ? nullptr : &*wanted;
}

}  // namespace cohort
