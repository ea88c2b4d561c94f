#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/security/identity.h"

namespace cohort {

// One row of the table of rights.
struct MethodRights {
  // As on the wire: "/cohort.v1.Admin/GetStatus".
  absl::string_view path;
  // The roles that may call it. Empty: every client, even without an identity.
  std::vector<PeerRole> roles;
  // The only server that may call it, by the number of its identity; absent:
  // every client with one of the roles.
  std::optional<int32_t> server;
};

// The one table of who may call which method. A method that is not in it is
// denied to all.
absl::Span<const MethodRights> RightsTable();

// Null if the method is not in the table.
const MethodRights* RightsOf(absl::string_view path);

}  // namespace cohort
