#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/ops/metrics_page.h"
#include "common/security/tls_files.h"
#include "server/access/access_control.h"
#include "server/metrics/grpc_metrics.h"
#include "server/ops/figures_source.h"
#include "server/ops/watchers.h"

namespace cohort {

class HttpServer;

struct OpsPortOptions {
  // host:port; port 0 takes a free one.
  std::string listen;
  // Allows an address that other machines can reach.
  bool insecure = false;
  // Returns whether new connections to that address are served; must not block.
  std::function<absl::Status()> reachable;
  // Served by HTTPS with these; absent: plain HTTP.
  std::optional<TlsContent> tls;
  // Decides about requests over HTTPS; must outlive the port. Null without it.
  AccessControl* access = nullptr;
  // When the certificate expires; null or InfiniteFuture without one.
  std::function<absl::Time()> certificate_end;
  // TLS handshakes that failed on the gRPC port; null: none are counted.
  std::function<int64_t()> handshake_failures;
};

// Checks only --ops_listen.
// Errors: InvalidArgument naming it.
absl::Status CheckOpsListen(const std::string& listen, bool insecure);

// The operations port of a server process: metrics and health, and on shard 0
// the live page of the run.
// Thread safety: safe.
class OpsPort {
 public:
  // The displayed objects; all must outlive the port.
  struct Sources {
    const GrpcMetrics& calls;
    // The numbers of the run, for the page and as metrics; null: there is no
    // page.
    const FiguresSource* figures = nullptr;
    // Receives each request for them; null without `figures`.
    Watchers* watchers = nullptr;
    // Metrics in place of the run's; may be null.
    MetricSource metrics = nullptr;
  };

  // The port is not ready until SetReady is called.
  // Errors: InvalidArgument as above; Unavailable: the address cannot be
  //   listened on.
  static absl::StatusOr<std::unique_ptr<OpsPort>> Start(
      const OpsPortOptions& options, const Sources& sources);
  ~OpsPort();

  const std::string& address() const;
  // Sets the answer of /readyz while the server can be reached; the message
  // says why it is not ready.
  void SetReady(absl::Status ready) ABSL_LOCKS_EXCLUDED(mu_);
  // Serves with this certificate from now on.
  // Errors: Unavailable: it cannot be used.
  absl::Status SetTls(const TlsContent& tls);

 private:
  explicit OpsPort(std::function<absl::Status()> reachable);
  // The contents of /metrics, in order.
  std::vector<MetricSource> MetricsOf(const OpsPortOptions& options,
                                      const Sources& sources) const;
  absl::Status ready() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<absl::Status()> reachable_;
  // http_ for its own thread, which may run before http_ is set.
  std::atomic<const HttpServer*> serving_ = nullptr;
  mutable Mutex mu_;
  absl::Status ready_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  std::unique_ptr<HttpServer> http_;
};

}  // namespace cohort
