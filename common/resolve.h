#pragma once

#include <netdb.h>

#include <memory>

#include "absl/status/statusor.h"
#include "common/listen_address.h"

namespace cohort {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a name and port of TCP, as a list. `flags` are those of
// getaddrinfo.
// Errors: Unavailable with the reason alone.
absl::StatusOr<Addresses> Resolve(const ListenAddress& address, int flags = 0);

}  // namespace cohort
