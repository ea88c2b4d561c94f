#include "common/wire/reach.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/ops/closed_connection.h"
#include "common/wire/security.h"
#include "common/wire/status.h"

namespace cohort {
namespace {

// Asks for the health of the server, which every server answers.
grpc::Status AskHealth(const std::shared_ptr<grpc::Channel>& channel,
                       absl::Duration timeout) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer reply;
  grpc::Status answer;
  Mutex mu;
  CondVar changed;
  bool done = false;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &reply,
                 [&](const grpc::Status& status) {
                   MutexLock lock(mu);
                   answer = status;
                   done = true;
                   changed.NotifyAll();
                 });
  MutexLock lock(mu);
  while (!done) changed.Wait(mu);
  return answer;
}

}  // namespace

absl::Status Reach(const std::shared_ptr<grpc::Channel>& channel,
                   const std::string& address, const TlsFiles& tls,
                   absl::Duration timeout) {
  const grpc::Status answer = AskHealth(channel, timeout);
  const std::string& text = answer.error_message();
  if (answer.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::UnavailableError("does not answer");
  }
  if (answer.error_code() != grpc::StatusCode::UNAVAILABLE) {
    return absl::OkStatus();
  }
  if (const std::optional<std::string> handshake = HandshakeFailure(text)) {
    return absl::UnavailableError(absl::StrCat("no connection: ", *handshake));
  }
  if (IsClosedEarly(text)) {
    const ClosedBecause cause = WhyClosed(address, tls, timeout);
    if (cause != ClosedBecause::kUnknown) {
      return absl::UnavailableError(
          absl::StrCat("no connection: ", Text(cause)));
    }
  }
  return absl::UnavailableError(absl::StrCat(
      "cannot be reached (", ConnectionFailure(text).value_or(text), ")"));
}

}  // namespace cohort
