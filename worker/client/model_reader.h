#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
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

// Reads versions of the run that a server holds, without joining it. The run
// neither waits for a reader nor counts it. It continues while a version is
// sent, because a version never changes.
//
// Thread safety: one thread reads. RequestStop may be called from any.
class ModelReader {
 public:
  virtual ~ModelReader() = default;

  // Weights and moving statistics of one version; if `version` is absent, of
  // the newest. `layout` is that of the caller's model.
  // Errors: FailedPrecondition: the run has a different model (names the first
  //   difference), or none is registered yet; OutOfRange: the version is not
  //   held; DeadlineExceeded: server_timeout passed; Cancelled.
  virtual absl::StatusOr<PulledVersion> Pull(
      const ModelLayout& layout, std::optional<Version> version) = 0;

  virtual void RequestStop() = 0;
};

// Errors: InvalidArgument if the options are invalid.
absl::StatusOr<std::unique_ptr<ModelReader>> MakeModelReader(
    const ReaderOptions& options);

}  // namespace cohort
