#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/worker_report.h"

namespace cohort {

struct Membership;

// Callbacks from a client to the process around it, for its log, metrics,
// heartbeats and timeline. Their results do not affect the client's calls.
//
// Called on the thread that drives the client unless said otherwise; must
// return at once.
class ClientHooks {
 public:
  virtual ~ClientHooks() = default;

  // The client has joined. `again`: it has returned after the connection broke,
  // as the same incarnation or a new one.
  virtual void OnJoined(const Membership& membership, bool again) = 0;

  // A call failed and is tried again. `method` is one of kRetriedMethods.
  virtual void OnRetry(absl::string_view method) = 0;

  // The worker cannot join for a reason that a person has to mend, such as a
  // certificate: one sentence with the reason and what to do. Called again at
  // an interval while that lasts.
  virtual void OnObstacle(const std::string& text) = 0;

  // The report since the last call. Called on the heartbeat thread.
  virtual WorkerReport TakeReport() = 0;

  // Whether each heartbeat requests the server's clock, and the result: the
  // server's clock is ahead of the system clock here by `offset`, give or take
  // `error`. Called on threads of the client.
  virtual bool WantsServerClock() const = 0;
  virtual void OnServerClock(absl::Duration offset, absl::Duration error) = 0;

  // How gradients and weights travel: one of kTransportNames, and one sentence
  // with the reason. Called when that is known, again after each reconnection
  // that changes it.
  virtual void OnExchangePath(absl::string_view transport,
                              absl::string_view text) = 0;

  // New TLS files are in use, or there is a fault in them. Called on a separate
  // thread.
  virtual void OnTlsFiles(bool fault, absl::string_view text) = 0;
};

inline constexpr absl::string_view kSessionMethod = "Session";
inline constexpr absl::string_view kRegisterMethod = "Register";
inline constexpr absl::string_view kPullMethod = "Pull";
inline constexpr absl::string_view kRetriedMethods[] = {
    kSessionMethod, kRegisterMethod, kPullMethod};

}  // namespace cohort
