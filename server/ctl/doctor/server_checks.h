#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"
#include "server/ctl/doctor/check.h"

namespace cohort {

// Whether an address can be understood, its name be found and a connection be
// made to it within `timeout`.
Check CheckAddress(const std::string& address, absl::Duration timeout);

// Whether what listens is a Cohort server, by how it answered GetStatus.
Check CheckServer(const absl::Status& answer, const v1::Status& status);

// Whether the run goes on: failed while it waits for workers that are away, a
// warning while one that is there holds it up.
Check CheckRun(const v1::Status& status);

// Whether this program, the server and the workers are of one build.
Check CheckVersions(absl::string_view own, const v1::Status& status);

// Whether the server's clock and this machine's agree: the server read its own
// between `asked` and `answered`.
Check CheckClock(const v1::Status& status, absl::Time asked,
                 absl::Time answered);

// Whether all workers are there.
Check CheckWorkers(const v1::Status& status);

// An operations port, and who says that it is there.
struct OpsAddress {
  enum class From { kFlag, kServer, kGuess };
  // host:port; empty: the server says that it has none.
  std::string address;
  From from = From::kGuess;
};

// `named`: what the user gave as --ops. `server`: where the server was reached.
OpsAddress OpsAddressOf(const std::optional<std::string>& named,
                        const std::string& server, const v1::Status& status);

// Whether an operations port answers and is ready.
Check CheckOpsPort(const OpsAddress& ops, absl::Duration timeout);

}  // namespace cohort
