#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/message_checksum.h"
#include "common/wire/status.h"
#include "worker/client/link.h"

namespace cohort {

// The call `method` of a stub's async(), with one request, which gets its
// checksum, and one answer, whose checksum is compared. `name` is used in
// errors, such as "the report".
// Errors: the call's own as in Link::NormalizedEnd; those of
//   Link::WaitLocked.
template <typename Async, typename Request, typename Reply>
absl::StatusOr<Reply> CallUnary(
    Link& link, const std::string& name, Instant deadline, Async* stub,
    void (Async::*method)(grpc::ClientContext*, const Request*, Reply*,
                          std::function<void(grpc::Status)>),
    Request& request) {
  AddMessageChecksum(&request);
  grpc::ClientContext context;
  Reply reply;
  std::optional<absl::Status> end;
  (stub->*method)(&context, &request, &reply,
                  [&link, &end](const grpc::Status& status) {
                    // Notify under the lock: the captured objects are destroyed
                    // as soon as the waiting thread sees the end.
                    MutexLock lock(link.mu);
                    end = FromGrpcStatus(status);
                    link.Notify();
                  });
  absl::Status wait;
  {
    MutexLock lock(link.mu);
    while (!end.has_value() && wait.ok()) wait = link.WaitLocked(deadline);
  }
  if (!wait.ok()) context.TryCancel();
  {
    MutexLock lock(link.mu);
    while (!end.has_value()) link.WaitForEndLocked();
  }
  COHORT_RETURN_IF_ERROR(wait);
  if (end->ok()) end = TakeMessageChecksum(&reply);
  // The streams' messages are parsed by this project; this one is parsed by
  // gRPC, which answers bytes that are no message as if it had no such method.
  if (absl::IsUnimplemented(*end) && end->message().empty()) {
    end = absl::DataLossError("the server could not read it");
  }
  if (!end->ok()) return link.NormalizedEnd(name, *end);
  return reply;
}

}  // namespace cohort
