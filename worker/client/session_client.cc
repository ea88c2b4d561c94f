#include "worker/client/session_client.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"

namespace cohort {

SessionClient::SessionClient(const std::shared_ptr<grpc::Channel>& channel,
                             Link& link, const v1::Join& join,
                             ClientHooks* hooks)
    : link_(link),
      hooks_(hooks),
      stub_(channel),
      stream_({.on_message =
                   [this](v1::SessionReply& reply) { return OnMessage(reply); },
               .on_written = nullptr,
               .on_end =
                   [this](const absl::Status& end) {
                     link_.Break(link_.NormalizedEnd("the session", end));
                   }}) {
  stream_.Start([this](grpc::ClientContext* context, auto* reactor) {
    stub_.PrepareBidiStreamingCall(context, "/cohort.v1.Membership/Session", {},
                                   reactor);
  });
  v1::SessionRequest request;
  *request.mutable_join() = join;
  AddMessageChecksum(&request);
  stream_.Write(request);
}

absl::StatusOr<v1::JoinReply> SessionClient::AwaitJoined(Instant deadline) {
  MutexLock lock(link_.mu);
  while (!joined_.has_value()) {
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(deadline));
  }
  return *joined_;
}

void SessionClient::Heartbeat() {
  v1::SessionRequest request;
  {
    MutexLock lock(link_.mu);
    request.mutable_heartbeat()->set_sequence(link_.tracker.sequence().value());
  }
  if (hooks_ != nullptr) {
    const WorkerReport report = hooks_->TakeReport();
    v1::Heartbeat& heartbeat = *request.mutable_heartbeat();
    heartbeat.mutable_phase_seconds()->insert(report.phases.begin(),
                                              report.phases.end());
    if (report.cpu_cores.has_value()) {
      heartbeat.set_cpu_cores(*report.cpu_cores);
    }
    if (report.resident_bytes.has_value()) {
      heartbeat.set_resident_bytes(*report.resident_bytes);
    }
    heartbeat.set_transport(report.transport);
    if (hooks_->WantsServerClock()) {
      heartbeat.set_sent_unix_us(absl::ToUnixMicros(absl::Now()));
    }
  }
  AddMessageChecksum(&request);
  stream_.WriteIfIdle(request);
}

void SessionClient::Leave(const Departure& departure, absl::Duration patience) {
  v1::SessionRequest request;
  request.mutable_leave()->set_reason(departure.reason);
  request.mutable_leave()->set_data_ended(departure.kind ==
                                          Departure::Kind::kDataEnded);
  request.mutable_leave()->set_refused(departure.kind ==
                                       Departure::Kind::kRefused);
  AddMessageChecksum(&request);
  stream_.Write(request);
  stream_.FinishWrites();
  stream_.WaitForEnd(link_.clock(), link_.clock().Now() + patience);
}

absl::Status SessionClient::OnMessage(v1::SessionReply& reply) {
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&reply));
  switch (reply.message_case()) {
    case v1::SessionReply::kJoined: {
      MutexLock lock(link_.mu);
      joined_ = reply.joined();
      break;
    }
    case v1::SessionReply::kAssignment: {
      COHORT_ASSIGN_OR_RETURN(const Assignment assignment,
                              FromProto(reply.assignment()));
      MutexLock lock(link_.mu);
      link_.tracker.Offer(assignment);
      break;
    }
    case v1::SessionReply::kStepAborted:
      COHORT_RETURN_IF_ERROR(OnStepAborted(reply.step_aborted()));
      break;
    case v1::SessionReply::kHeartbeatEcho:
      OnHeartbeatEcho(reply.heartbeat_echo());
      return absl::OkStatus();
    case v1::SessionReply::MESSAGE_NOT_SET:
      // A notice of a later protocol version; it can be ignored.
      return absl::OkStatus();
  }
  link_.Notify();
  return absl::OkStatus();
}

// The server read its clock at some moment of the round trip, so the error of
// the estimate is at most half of it.
void SessionClient::OnHeartbeatEcho(const v1::HeartbeatEcho& echo) const {
  if (hooks_ == nullptr || echo.sent_unix_us() <= 0) return;
  const absl::Time now = absl::Now();
  const absl::Duration half =
      (now - absl::FromUnixMicros(echo.sent_unix_us())) / 2;
  // The local clock was set back on the way.
  if (half < absl::ZeroDuration()) return;
  hooks_->OnServerClock(
      absl::FromUnixMicros(echo.server_unix_us()) - (now - half), half);
}

absl::Status SessionClient::OnStepAborted(const v1::StepAborted& notice) {
  if (notice.step() < 0 || notice.attempt() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_aborted: got step ", notice.step(), ", attempt ",
                     notice.attempt(), ", want at least 0"));
  }
  MutexLock lock(link_.mu);
  link_.tracker.Abort(Version(notice.step()), Attempt(notice.attempt()),
                      notice.reason());
  return absl::OkStatus();
}

}  // namespace cohort
