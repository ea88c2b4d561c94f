#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model_layout.h"
#include "common/security/tls_files.h"
#include "worker/client/client.h"

namespace cohort {

struct ReaderOptions {
  // host:port of the server.
  std::string server;
  // Empty: plaintext.
  TlsFiles tls;
  // How long to wait for an unreachable server.
  absl::Duration server_timeout = absl::Minutes(5);
  // Seeds the jitter of the back-off.
  uint64_t backoff_seed = 0;
};

// Reads the newest version of the run that a server holds, with its weights and
// moving statistics, without joining the run, which neither waits for a reader
// nor counts it. It continues while a version is sent, because a version never
// changes. `layout` is that of the caller's model.
// Errors: InvalidArgument if the options are invalid; FailedPrecondition: the
//   run has a different model (names the first difference), or none is
//   registered yet; DeadlineExceeded: server_timeout passed.
absl::StatusOr<PulledVersion> ReadNewest(const ReaderOptions& options,
                                         const ModelLayout& layout);

}  // namespace cohort
