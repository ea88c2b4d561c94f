#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"
#include "common/security/tls_files.h"
#include "server/ctl/connection_text.h"
#include "server/ctl/doctor/check.h"

namespace cohort {

// Checks whether an address is valid, its name can be resolved and a connection
// can be made within `timeout`.
Check CheckAddress(const std::string& address, absl::Duration timeout);

// Checks whether the listener is a Cohort server, by its answer to GetStatus.
Check CheckServer(const absl::Status& answer, const v1::Status& status);

// Checks whether the connection is encrypted, and whether a certificate expires
// within a week: a warning.
Check CheckConnection(const ConnectionView& connection,
                      const std::string& address, absl::Time now);

// The failed check of a server that refuses changes because it cannot record
// them (--audit_log).
Check CheckRecord(const v1::Status& status);

// The failed check of a server whose newest checkpoint could not be written.
Check CheckCheckpoints(const v1::Status& status);
Check CheckData(const v1::Status& status);

// Checks whether all data shards of a model that several servers share are
// connected; only a warning after the end of the run.
Check CheckShards(const v1::Status& status);

// Checks whether the run trains: failed while it waits for workers or data
// shards that are away, a warning while a worker that is present delays it.
Check CheckRun(const v1::Status& status);

// Checks whether this program, the server and the workers are of one build.
Check CheckVersions(absl::string_view own, const v1::Status& status);

// Checks whether the clocks of the server and this machine agree: the server
// read its clock between `asked` and `answered`.
Check CheckClock(const v1::Status& status, absl::Time asked,
                 absl::Time answered);

// Checks whether all workers are present; skipped while a data shard is away.
Check CheckWorkers(const v1::Status& status);

// The address of an operations port, and its source.
struct OpsAddress {
  enum class From { kFlag, kServer, kGuess };
  // host:port; empty if the server says that it has none.
  std::string address;
  From from = From::kGuess;
};

// `named` is the user's --ops. `server` is the address where the server was
// reached.
OpsAddress OpsAddressOf(const std::optional<std::string>& named,
                        const std::string& server, const v1::Status& status);

// Checks whether an operations port answers and is ready.
Check CheckOpsPort(const OpsAddress& ops, const TlsFiles& tls,
                   absl::Duration timeout);

}  // namespace cohort
