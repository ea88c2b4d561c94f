#pragma once

#include <string>

#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"
#include "server/ctl/server_target.h"

namespace cohort {

// How cohortctl's connection to a server is secured.
struct ConnectionView {
  bool encrypted = false;
  // cohortctl as the server knows it; empty without encryption.
  std::string client;
  // When the two certificates expire; InfiniteFuture without one.
  absl::Time own_end = absl::InfiniteFuture();
  absl::Time server_end = absl::InfiniteFuture();

  absl::Time first_end() const;
};

ConnectionView ConnectionOf(const ServerTarget& target,
                            const v1::Status& status);

// "encrypted, as spiffe://..., own certificate ends in 364 days, the server's
// in 3 days", or "not encrypted".
std::string ConnectionText(const ConnectionView& connection, absl::Time now);

// "expired", "in 3 days" or "in 5 minutes".
std::string EndText(absl::Time end, absl::Time now);

}  // namespace cohort
