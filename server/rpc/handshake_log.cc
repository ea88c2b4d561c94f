#include "server/rpc/handshake_log.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/wire/security.h"

namespace cohort {
namespace {

constexpr absl::Duration kInterval = absl::Minutes(1);
// The reasons are few; a text from a client must not make more of them.
constexpr size_t kReasonsMax = 32;

}  // namespace

bool HandshakeLog::Take(absl::string_view text, std::string& line) {
  line.clear();
  const std::optional<std::string> reason = HandshakeFailure(text);
  if (!reason.has_value()) return false;
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  ++failures_;
  const bool known = reasons_.contains(*reason);
  if (!known && reasons_.size() >= kReasonsMax) return true;
  Reason& seen = reasons_[*reason];
  ++seen.count;
  if (known && now - seen.logged_at < kInterval) return true;
  const int64_t count = std::exchange(seen.count, 0);
  line = absl::StrCat(
      "a TLS handshake failed: ", *reason,
      count == 1 ? ""
                 : absl::StrCat(" (", count, " since the last such line)"));
  seen.logged_at = now;
  return true;
}

int64_t HandshakeLog::failures() const {
  MutexLock lock(mu_);
  return failures_;
}

}  // namespace cohort
