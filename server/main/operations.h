#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/main/server_options.h"
#include "server/main/server_security.h"
#include "server/ops/figures_source.h"
#include "server/ops/ops_port.h"
#include "server/ops/report_writer.h"
#include "server/rpc/self_probe.h"

namespace cohort {

// What shows a server process: its operations port, which says whether new
// connections are served, and the report of a run.
// Thread safety: safe, except that StartReport and Start come first and Close
// last.
class Operations {
 public:
  // All references must outlive it.
  Operations(const ServerOptions& options, ServerSecurity& security)
      : options_(options), security_(security) {}

  // For a process that coordinates a run. No-op without --results_dir.
  // `figures` must outlive it.
  void StartReport(FiguresSource& figures);
  // No port without --ops_listen. `address` is where the process listens.
  // Errors: those of OpsPort::Start.
  absl::Status Start(const std::string& address,
                     const OpsPort::Sources& sources) ABSL_LOCKS_EXCLUDED(mu_);

  // The address of the operations port; empty if there is none.
  std::string address() const ABSL_LOCKS_EXCLUDED(mu_);
  // The address of its page; empty if there is none.
  std::string url() const ABSL_LOCKS_EXCLUDED(mu_);
  // See OpsPort::SetReady.
  void SetReady(absl::Status ready);
  // The report with the figures as they are now. No-op without --results_dir.
  // Errors: those of ReportWriter::Write.
  absl::Status WriteReport();
  // Call before the process refuses connections.
  void StopProbe();
  void Close();

 private:
  const ServerOptions& options_;
  ServerSecurity& security_;

  mutable Mutex mu_;
  // Empty until the port listens; calls are served before that.
  std::string address_ ABSL_GUARDED_BY(mu_);

  // Destroyed in the reverse order: each uses those before it.
  // Null without --results_dir.
  std::unique_ptr<ReportWriter> report_;
  // Null without an operations port; the same for the port itself.
  std::unique_ptr<SelfProbe> probe_;
  std::unique_ptr<OpsPort> ops_;
};

}  // namespace cohort
