#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/push.h"
#include "worker/client/client.h"
#include "worker/client/link.h"

namespace cohort {

// The calls of KeptState on one channel. All references must outlive it.
// Errors: the call's own as in Link::NormalizedEnd; those of
//   Link::WaitLocked.
struct StateCalls {
  const std::shared_ptr<grpc::Channel>& channel;
  Link& link;
  const Sender& sender;
  Instant deadline;

  absl::StatusOr<bool> Hold(const StateHolding& holding) const;
  absl::Status Give(Version version, absl::string_view bytes) const;
  // Absent: not there yet.
  absl::StatusOr<std::optional<TakenState>> Take(
      const Assignment& assignment) const;
};

}  // namespace cohort
