// What shows a run: its report and the operations port.

#include <memory>
#include <string>
#include <utility>

#include "common/formats/file_system.h"
#include "server/main/server.h"
#include "server/main/start_files.h"
#include "server/rpc/handshake_log.h"

namespace cohort {

void Server::StartReport() {
  if (options_.ops_listen.empty() && !files_->keeps_results()) return;
  figures_ = std::make_unique<FiguresSource>(
      *run_, stats_, *files_, clock_,
      FiguresSource::Links{.address = address_,
                           .dashboards_url = options_.dashboards_url});
  if (!files_->keeps_results()) return;
  report_ = std::make_unique<ReportWriter>(RealFileSystem(), *figures_,
                                           options_.files.results_dir);
}

absl::Status Server::StartOps() {
  if (options_.ops_listen.empty()) {
    security_->Watch(nullptr);
    return absl::OkStatus();
  }
  probe_ = std::make_unique<SelfProbe>(address_, security_->security());
  absl::StatusOr<std::unique_ptr<OpsPort>> ops = OpsPort::Start(
      {.listen = options_.ops_listen,
       .insecure = options_.insecure,
       .reachable = [this] { return probe_->status(); },
       .tls = security_->tls(),
       .access = security_->access(),
       .certificate_end = [this] { return security_->not_after(); },
       .handshake_failures = [log = options_.handshakes]() -> int64_t {
         return log == nullptr ? 0 : log->failures();
       }},
      {.calls = grpc_metrics_,
       .figures = figures_.get(),
       .watchers = &watchers_});
  if (!ops.ok()) return ops.status();
  ops_ = *std::move(ops);
  {
    MutexLock lock(mu_);
    ops_address_ = ops_->address();
  }
  security_->Watch([this](const TlsContent& tls) { return ops_->SetTls(tls); });
  return WriteAddressFile(options_.ops_address_file, ops_->address());
}

std::string Server::ops_address() const {
  MutexLock lock(mu_);
  return ops_address_;
}

}  // namespace cohort
