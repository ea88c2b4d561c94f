#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "worker/client/client.h"

namespace cohort {

struct ReaderOptions {
  // host:port of the server.
  std::string server;
  // How long an unreachable server is waited for.
  absl::Duration server_timeout = absl::Minutes(5);
  // Seeds the jitter of the back-off.
  uint64_t backoff_seed = 0;
};

// Reads versions of whatever run a server holds, without joining it: the run
// neither waits for a reader nor counts it, and goes on while a version, which
// nobody writes to, is sent.
//
// Thread safety: one thread reads. RequestStop may be called from any.
class ModelReader {
 public:
  virtual ~ModelReader() = default;

  // Weights and moving statistics of one version (absent: the newest), all of
  // that version. `layout` is that of the caller's model.
  // Errors: FailedPrecondition: the run's model is another (names the first
  //   difference), or none is registered yet; OutOfRange: the version is not
  //   held; DeadlineExceeded: server_timeout passed; Cancelled.
  virtual absl::StatusOr<PulledVersion> Pull(
      const ModelLayout& layout, std::optional<Version> version) = 0;

  virtual void RequestStop() = 0;
};

// Errors: InvalidArgument if the options are not usable.
absl::StatusOr<std::unique_ptr<ModelReader>> MakeModelReader(
    const ReaderOptions& options);

}  // namespace cohort
