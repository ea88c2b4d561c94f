#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The part that a certificate's holder plays in a run.
enum class PeerRole { kServer, kWorker, kViewer, kOperator };

// "server", "worker", "viewer", "operator".
absl::string_view PeerRoleName(PeerRole role);

// The holder of a certificate, as one URI among its subject's alternative
// names:
//
//   spiffe://DOMAIN/cohort/RUN/server/SHARD
//   spiffe://DOMAIN/cohort/RUN/worker/RANK   (or worker/any)
//   spiffe://DOMAIN/cohort/RUN/viewer
//   spiffe://DOMAIN/cohort/RUN/operator
//
// Source: SPIFFE-ID 1.0, section 2.
struct Identity {
  // The trust domain: lower-case letters, digits and ".-_".
  std::string domain;
  // The run's name, a DNS label; not the random run id.
  std::string run;
  PeerRole role = PeerRole::kViewer;
  // The shard or the rank; absent for worker/any, viewers and operators.
  std::optional<int32_t> number;

  std::string Uri() const;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// Errors: InvalidArgument with the text seen and the forms wanted.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);

}  // namespace cohort
