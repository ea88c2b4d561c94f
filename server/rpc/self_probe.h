#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/wire/shared_security.h"

namespace cohort {

// Tells whether a new worker could connect. Dials the server's own port every
// few seconds, on its own thread, with a fresh connection each time. A
// connection that is kept open would not notice that new ones are no longer
// accepted.
// Thread safety: safe.
class SelfProbe {
 public:
  // `address` is the listening host:port; "all addresses" are dialled through
  // loopback. `security` may be null.
  SelfProbe(const std::string& address, SharedSecurity security);

  // Stops dialling. The status keeps its last value.
  void Stop();

  // OK before the first result. Never blocks.
  // Errors: Unavailable: the last connection was not answered.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Dial() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string target_;
  const SharedSecurity security_;
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
