#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/trace_file.h"
#include "common/mutex.h"
#include "common/ops/http_server.h"
#include "common/security/authenticator.h"
#include "common/security/tls_files.h"
#include "common/security/tls_watcher.h"
#include "worker/client/client.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/telemetry/exchange_log.h"
#include "worker/telemetry/worker_telemetry.h"

namespace cohort {

struct ObservedWorkerOptions {
  // File for the timeline; none if empty.
  std::string trace;
  // File for the exchange with the server; none if empty. See ExchangeLog.
  std::string exchange_log;
  // host:port of the metrics; none if empty.
  std::string ops_listen;
  // Allows plaintext on an address that other machines can reach.
  bool insecure = false;
  // Served by HTTPS if not empty, for viewers and operators of the run.
  TlsFiles tls;
};

// The objects that make a worker observable while it trains: telemetry, and on
// request a timeline and an operations port.
// Thread safety: as the objects that it hands out.
class ObservedWorker {
 public:
  // Errors: FailedPrecondition (the timeline cannot be written),
  //   InvalidArgument (address), Unavailable (the address is in use).
  static absl::StatusOr<std::unique_ptr<ObservedWorker>> Start(
      const ObservedWorkerOptions& options);
  ~ObservedWorker();

  WorkerTelemetry& telemetry() { return *telemetry_; }
  // Null if none was requested.
  TraceFile* trace() { return trace_.get(); }
  // Makes the client to drive, whose events are observed; it is owned by this
  // object. Call it once.
  // Errors: those of MakeGrpcClient; FailedPrecondition (the log of the
  //   exchange cannot be written).
  absl::StatusOr<Client*> Connect(ClientOptions options);
  // Ends the client's connections and completes the timeline; nothing may use
  // them any more. The operations port stays open. Once, after Connect.
  void Disconnect();
  // OK unless the timeline could not be written.
  absl::Status trace_status() const;

 private:
  ObservedWorker() = default;

  absl::Status StartOps(const ObservedWorkerOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Serve(const TlsContent& tls) ABSL_LOCKS_EXCLUDED(mu_);

  // Empty: none.
  std::string exchange_log_path_;
  std::unique_ptr<Client> client_;
  // Null unless requested.
  std::unique_ptr<ExchangeLog> exchange_log_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<WorkerTelemetry> telemetry_;
  // Null without a certificate.
  std::unique_ptr<Authenticator> readers_;
  std::unique_ptr<TlsWatcher> watcher_;
  Mutex mu_;
  // Last: it serves the objects above.
  std::unique_ptr<HttpServer> ops_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
