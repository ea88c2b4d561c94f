#include "worker/telemetry/observed_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/ops/certificate_collector.h"
#include "common/ops/log_collector.h"
#include "common/ops/ops_routes.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "worker/client/client_hooks.h"

namespace cohort {

absl::StatusOr<std::unique_ptr<ObservedWorker>> ObservedWorker::Start(
    const ObservedWorkerOptions& options) {
  auto worker = std::unique_ptr<ObservedWorker>(new ObservedWorker);
  if (!options.trace.empty()) {
    absl::StatusOr<std::unique_ptr<TraceFile>> file =
        TraceFile::Create(options.trace, "worker");
    if (!file.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("--trace: ", file.status().message()));
    }
    worker->trace_ = *std::move(file);
  }
  worker->exchange_log_path_ = options.exchange_log;
  const bool ops = !options.ops_listen.empty();
  if (ops) {
    worker->metrics_ = std::make_unique<WorkerMetrics>(
        WorkerTelemetry::StateNames(), kRetriedMethods);
  }
  worker->telemetry_ = std::make_unique<WorkerTelemetry>(worker->metrics_.get(),
                                                         worker->trace_.get());
  if (ops) COHORT_RETURN_IF_ERROR(worker->StartOps(options));
  return worker;
}

absl::StatusOr<Client*> ObservedWorker::Connect(ClientOptions options) {
  options.hooks = telemetry_.get();
  COHORT_ASSIGN_OR_RETURN(client_, MakeGrpcClient(options));
  client_->SetObserver(
      [](const std::string& text) { Log(LogLevel::kInfo, text); });
  if (exchange_log_path_.empty()) return client_.get();
  absl::StatusOr<std::unique_ptr<ExchangeLog>> log =
      ExchangeLog::Open(exchange_log_path_, *client_);
  if (!log.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--exchange_log: ", log.status().message()));
  }
  exchange_log_ = *std::move(log);
  return exchange_log_.get();
}

void ObservedWorker::Disconnect() {
  exchange_log_.reset();
  client_.reset();
  trace_.reset();
}

absl::Status ObservedWorker::trace_status() const {
  return trace_ == nullptr ? absl::OkStatus() : trace_->status();
}

absl::Status ObservedWorker::StartOps(const ObservedWorkerOptions& options) {
  OpsPages pages{
      .metrics = {[metrics = metrics_.get()] { return metrics->Collect(); },
                  &LogFamilies, &ProcessFamilies},
      .ready = [telemetry = telemetry_.get()] { return telemetry->Ready(); }};
  COHORT_ASSIGN_OR_RETURN(const TlsContent tls,
                          ReadTlsFiles(options.tls, absl::Now()));
  HttpServerOptions http{.listen = options.ops_listen,
                         .insecure = options.insecure};
  if (tls.identity.has_value()) {
    readers_ = std::make_unique<Authenticator>(*tls.identity, nullptr);
    // The client of the same process reports the same files.
    watcher_ = std::make_unique<TlsWatcher>(
        options.tls, tls, [this](const TlsContent& now) { return Serve(now); },
        nullptr);
    pages.metrics.push_back([watcher = watcher_.get()] {
      return CertificateFamilies(watcher->not_after());
    });
    http.tls = tls;
    http.admit = [readers = readers_.get()](absl::string_view /*page*/,
                                            const Presented& presented) {
      return readers->CheckPageReader(presented);
    };
  }
  http.routes = OpsRoutes(pages);
  {
    MutexLock lock(mu_);
    COHORT_ASSIGN_OR_RETURN(ops_, HttpServer::Start(http));
    Log(LogLevel::kInfo,
        absl::StrCat("operations port: ", ops_->encrypted() ? "https" : "http",
                     "://", ops_->address(), "/metrics"));
  }
  return absl::OkStatus();
}

// The threads of these report to the other members until they are gone.
ObservedWorker::~ObservedWorker() {
  client_.reset();
  watcher_.reset();
}

absl::Status ObservedWorker::Serve(const TlsContent& tls) {
  MutexLock lock(mu_);
  return ops_ == nullptr ? absl::OkStatus() : ops_->SetTls(tls);
}

}  // namespace cohort
