#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cohort {

struct Membership;

// What a process around a client hears from it, and has it tell the server: for
// its log, metrics, heartbeats and timeline. Nothing depends on the answers.
//
// Called on the thread that drives the client unless said otherwise; must
// return at once.
class ClientHooks {
 public:
  virtual ~ClientHooks() = default;

  // Joined. `again`: has come back after the connection broke, as the same life
  // or as a new one.
  virtual void OnJoined(const Membership& membership, bool again) = 0;

  // A call did not succeed and is tried again. `method` is one of
  // kRetriedMethods.
  virtual void OnRetry(absl::string_view method) = 0;

  // Mean seconds of a step by phase (see common/step_phase.h), over the steps
  // since the last call; none: no step ended. On the thread of heartbeats.
  virtual std::map<std::string, double> TakePhaseSeconds() = 0;

  // Whether the server's clock is to be asked for with each heartbeat, and what
  // came of it: it shows `offset` more than the system's clock here, give or
  // take `error`. On threads of the client's own.
  virtual bool WantsServerClock() const = 0;
  virtual void OnServerClock(absl::Duration offset, absl::Duration error) = 0;
};

inline constexpr absl::string_view kSessionMethod = "Session";
inline constexpr absl::string_view kRegisterMethod = "Register";
inline constexpr absl::string_view kPullMethod = "Pull";
inline constexpr absl::string_view kRetriedMethods[] = {
    kSessionMethod, kRegisterMethod, kPullMethod};

}  // namespace cohort
