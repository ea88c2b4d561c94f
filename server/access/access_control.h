#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/security/authenticator.h"

namespace cohort {

// Calls that one client was denied, since the last report.
struct DeniedCalls {
  // The identity, or what was presented instead.
  std::string client;
  // A method's path, or a page.
  std::string target;
  Refusal refusal = Refusal::kNoIdentity;
  int64_t count = 0;
};

// Decides which client may call which method or read which page, by the table
// in roles.h, and counts what it denies. Denials are reported by client and
// minute, on a separate thread, so that a flood of them delays nothing.
// Thread safety: safe.
class AccessControl {
 public:
  using OnDenied = std::function<void(const std::vector<DeniedCalls>&)>;

  // `tokens` must outlive the object; may be null. `on_denied` may be null.
  AccessControl(Identity own, const Tokens* tokens, OnDenied on_denied);
  // Reports what was not reported yet.
  ~AccessControl();

  bool takes_tokens() const { return authenticator_.takes_tokens(); }

  // The caller; its name is empty for a method that is open to all.
  // Errors: Unauthenticated: no identity, or an unknown token;
  //   PermissionDenied: another run, a role that may not, an unknown method.
  absl::StatusOr<Caller> CheckCall(absl::string_view path,
                                   const Presented& presented)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Caller> CheckPage(absl::string_view page,
                                   const Presented& presented)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Records a message that was refused because its client may not act for the
  // rank that it names.
  void NoteRank(const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);

  // Denied calls since the start.
  int64_t denied(Refusal refusal) const;

 private:
  absl::StatusOr<Caller> Check(absl::string_view target,
                               const Presented& presented,
                               absl::Span<const PeerRole> roles)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Note(const std::string& client, absl::string_view target,
            Refusal refusal) ABSL_LOCKS_EXCLUDED(mu_);
  void Report() ABSL_LOCKS_EXCLUDED(mu_);

  const Authenticator authenticator_;
  const OnDenied on_denied_;
  // Counters only, so relaxed order is enough.
  std::array<std::atomic<int64_t>, std::size(kRefusals)> denied_{};

  Mutex mu_;
  // Calls that are not reported yet, by client, target and reason.
  std::map<std::pair<std::string, std::string>, DeniedCalls> recent_
      ABSL_GUARDED_BY(mu_);

  // False after a minute without denials.
  bool reporting_ ABSL_GUARDED_BY(mu_) = false;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> reporter_;
};

}  // namespace cohort
