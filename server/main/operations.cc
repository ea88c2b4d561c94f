#include "server/main/operations.h"

#include <cstdint>
#include <utility>

#include "common/formats/file_system.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "server/rpc/handshake_log.h"

namespace cohort {

void Operations::StartReport(FiguresSource& figures) {
  if (options_.files.results_dir.empty()) return;
  report_ = std::make_unique<ReportWriter>(RealFileSystem(), figures,
                                           options_.files.results_dir);
}

absl::Status Operations::Start(const std::string& address,
                               const OpsPort::Sources& sources) {
  if (options_.ops_listen.empty()) {
    // Tokens are read again all the same.
    security_.Watch(nullptr);
    return absl::OkStatus();
  }
  probe_ = std::make_unique<SelfProbe>(address, security_.security());
  COHORT_ASSIGN_OR_RETURN(
      ops_,
      OpsPort::Start(
          {.listen = options_.ops_listen,
           .insecure = options_.insecure,
           .reachable = [this] { return probe_->status(); },
           .tls = security_.tls(),
           .access = security_.access(),
           .certificate_end = [this] { return security_.not_after(); },
           .handshake_failures = [log = options_.handshakes]() -> int64_t {
             return log == nullptr ? 0 : log->failures();
           }},
          sources));
  {
    MutexLock lock(mu_);
    address_ = ops_->address();
  }
  // Last, because it calls the port.
  security_.Watch([this](const TlsContent& tls) { return ops_->SetTls(tls); });
  return absl::OkStatus();
}

std::string Operations::address() const {
  MutexLock lock(mu_);
  return address_;
}

std::string Operations::url() const {
  const std::string at = address();
  return at.empty() ? "" : UrlHere(at, security_.encrypted());
}

void Operations::SetReady(absl::Status ready) {
  if (ops_ != nullptr) ops_->SetReady(std::move(ready));
}

absl::Status Operations::WriteReport() {
  return report_ == nullptr ? absl::OkStatus() : report_->Write();
}

void Operations::StopProbe() {
  if (probe_ != nullptr) probe_->Stop();
}

void Operations::Close() {
  // Each before what it uses: the watcher calls the port, and the port asks the
  // probe and the figures.
  security_.StopWatching();
  ops_.reset();
  probe_.reset();
  report_.reset();
}

}  // namespace cohort
