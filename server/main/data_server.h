#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/formats/trace_file.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/progress_report.h"
#include "server/main/doors.h"
#include "server/main/operations.h"
#include "server/main/server_options.h"
#include "server/main/server_security.h"
#include "server/partitions/partitions_host.h"
#include "server/rpc/call_counts.h"

namespace cohort {

// A data shard (--data_shard): holds partitions of a run whose shard 0 connects
// to it. It gets its settings there, and has no files but addresses and
// --trace.
//
// Thread safety: safe, but only one thread calls Wait.
class DataServer {
 public:
  // Errors: InvalidArgument: see Validate; Unavailable: the address cannot be
  //   listened on.
  static absl::StatusOr<std::unique_ptr<DataServer>> Start(
      const ServerOptions& options, std::ostream& out);
  ~DataServer();

  const std::string& address() const { return address_; }
  // The address of the operations port; empty if there is none.
  std::string ops_address() const { return operations_.address(); }

  // Blocks until the run is over or a stop is requested, and then until
  // everything has stopped. After a request it stays for shard 0, if that is
  // connected, for up to 20 s. Returns true if the run is over.
  bool Wait() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes Wait return. Returns at once.
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DataServer(const ServerOptions& options,
             std::unique_ptr<ServerSecurity> security,
             std::shared_ptr<TraceFile> trace);

  absl::Status Listen();
  void StayForShard0() ABSL_LOCKS_EXCLUDED(mu_);
  // A run attaches, perhaps after another one has ended.
  void OnBegin() ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd() ABSL_LOCKS_EXCLUDED(mu_);
  void Stop();

  // Fixed after Start.
  const ServerOptions options_;
  const SteadyClock clock_;
  std::string address_;
  CallCounts calls_;

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  ProgressReport progress_ ABSL_GUARDED_BY(mu_);

  // Destroyed in the reverse order: each uses those before it.
  std::unique_ptr<ServerSecurity> security_;
  // Null without --trace.
  std::shared_ptr<TraceFile> trace_;
  PartitionsHost host_;
  Doors doors_;
  Operations operations_;
  std::unique_ptr<PeriodicTask> ticker_;
};

}  // namespace cohort
