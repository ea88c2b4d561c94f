#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace cohort {

// Counts the TLS handshakes that fail on the gRPC port, and makes of gRPC's log
// lines about them one line a minute and reason. gRPC does not tell the
// client's address.
// Thread safety: safe.
class HandshakeLog {
 public:
  // `clock` must outlive the object.
  explicit HandshakeLog(const Clock& clock) : clock_(clock) {}

  // Takes a line of gRPC's log. Returns whether it reports a failed handshake,
  // and sets `line` to the line to log, empty if there is none now.
  bool Take(absl::string_view text, std::string& line) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t failures() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Reason {
    Instant logged_at;
    // Failures that are not logged yet.
    int64_t count = 0;
  };

  const Clock& clock_;
  mutable Mutex mu_;
  int64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  // By text; there are as many as HandshakeFailure knows.
  std::map<std::string, Reason> reasons_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
