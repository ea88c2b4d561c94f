#include "worker/client/reduce_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/local/local_messages.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"

namespace cohort {
namespace {

constexpr char kName[] = "the rendezvous";
// Between two looks at whether the connection and the step still hold.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(50);

ReduceKey KeyOf(const ReducePass& pass, const Contribution& of) {
  return {.step = pass.step, .attempt = pass.attempt, .place = of.place};
}

// `Proto` is a request or a part of one.
template <typename Proto>
void Describe(const ReducePass& pass, const Contribution& local, Proto& proto) {
  ToProto(KeyOf(pass, local), proto.mutable_key());
  proto.set_count(local.moments.count);
  EncodeMoments(local.moments, proto.mutable_values());
  proto.mutable_extents()->Add(local.extents.begin(), local.extents.end());
}

}  // namespace

ReduceClient::ReduceClient(const std::shared_ptr<grpc::Channel>& channel,
                           Link& link, Options options)
    : link_(link), options_(std::move(options)), stub_(channel) {
  if (options_.local != nullptr) return;
  stream_ = std::make_unique<Stream>(Stream::Reactions{
      .on_message = [this](v1::ReduceReply& reply) { return OnReply(reply); },
      .on_written = nullptr,
      .on_end =
          [this](const absl::Status& end) {
            link_.Break(link_.NormalizedEnd(kName, end));
          }});
  stream_->Start([this](grpc::ClientContext* context, auto* reactor) {
    // The session is up, but this channel may still be connecting.
    context->set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(context, "/cohort.v1.Moments/Reduce", {},
                                   reactor);
  });
}

absl::StatusOr<std::vector<Moments>> ReduceClient::Reduce(
    const ReducePass& pass, absl::Span<const Contribution> local) {
  if (local.empty()) return std::vector<Moments>();
  {
    MutexLock lock(link_.mu);
    wanted_.clear();
    for (const Contribution& call : local) {
      wanted_.push_back({.key = KeyOf(pass, call)});
    }
    open_ = local.size();
    aborted_ = absl::OkStatus();
  }
  COHORT_RETURN_IF_ERROR(Send(pass, local));
  COHORT_RETURN_IF_ERROR(Await(pass));

  std::vector<Moments> results;
  MutexLock lock(link_.mu);
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

absl::Status ReduceClient::Send(const ReducePass& pass,
                                absl::Span<const Contribution> local) {
  request_.Clear();
  ToProto(options_.sender, request_.mutable_sender());
  request_.set_takes_further_results(true);
  Describe(pass, local.front(), request_);
  for (const Contribution& further : local.subspan(1)) {
    Describe(pass, further, *request_.add_further());
  }
  if (options_.local == nullptr) {
    AddMessageChecksum(&request_);
    // A refused write means that the stream has ended; the link holds the
    // reason.
    stream_->Write(request_);
    return absl::OkStatus();
  }
  encoded_.assign(1, static_cast<char>(local::Mail::kReduce));
  request_.AppendToString(&encoded_);
  return options_.local->SendMessage(encoded_, [this, &pass]() -> absl::Status {
    COHORT_RETURN_IF_ERROR(TakeLocalReplies());
    MutexLock lock(link_.mu);
    return CheckLocked(pass);
  });
}

absl::Status ReduceClient::Await(const ReducePass& pass) {
  for (;;) {
    if (options_.local != nullptr) COHORT_RETURN_IF_ERROR(TakeLocalReplies());
    {
      MutexLock lock(link_.mu);
      if (open_ == 0) return absl::OkStatus();
      COHORT_RETURN_IF_ERROR(CheckLocked(pass));
      if (options_.local == nullptr) {
        // Waiting awake, as for shared memory, was slower on two cores: gRPC's
        // threads need them.
        COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
        continue;
      }
    }
    // The end of the connection, or of the step, does not end this wait.
    options_.local->WaitForMessage(kCheckInterval);
  }
}

absl::Status ReduceClient::CheckLocked(const ReducePass& pass) {
  COHORT_RETURN_IF_ERROR(aborted_);
  COHORT_RETURN_IF_ERROR(link_.tracker.CheckStep(pass.step, pass.attempt));
  return link_.CheckLocked();
}

absl::Status ReduceClient::TakeLocalReplies() {
  for (;;) {
    absl::StatusOr<std::optional<std::string>> mail =
        options_.local->ReceiveMessage();
    absl::Status taken = mail.status();
    if (mail.ok()) {
      if (!mail->has_value()) return absl::OkStatus();
      taken = OnMail(**mail);
    }
    if (taken.ok()) continue;
    taken = link_.NormalizedEnd(kName, taken);
    link_.Break(taken);
    return taken;
  }
}

absl::Status ReduceClient::OnMail(absl::string_view mail) {
  if (!mail.empty() && mail[0] == static_cast<char>(local::Mail::kReduce) &&
      local_reply_.ParseFromArray(mail.data() + 1,
                                  static_cast<int>(mail.size()) - 1)) {
    return OnReply(local_reply_);
  }
  if (mail.size() >= 2 && mail[0] == static_cast<char>(local::Mail::kEnd)) {
    const absl::Status end(static_cast<absl::StatusCode>(mail[1]),
                           mail.substr(2));
    // An end without an error is the server's, too.
    return end.ok() ? absl::UnavailableError("the server closed it") : end;
  }
  return absl::DataLossError(absl::StrCat("shared memory: got ", mail.size(),
                                          " bytes, want a ReduceReply"));
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
      Moments result,
      DecodeMoments(key.place.phase, proto.count(), proto.values()));
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
