#include "server/ops/ops_port.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/ops/certificate_collector.h"
#include "common/ops/http_server.h"
#include "common/ops/log_collector.h"
#include "common/ops/ops_routes.h"
#include "common/ops/process_collector.h"
#include "server/metrics/run_metrics.h"
#include "server/ops/access_collector.h"
#include "server/status_page/page_routes.h"

namespace cohort {
namespace {

// Must equal POLL_MS of status_page/page.js.
constexpr absl::Duration kPageInterval = absl::Seconds(1);

// The page and its numbers, whose requests are counted.
std::map<std::string, HttpHandler> RunRoutes(const FiguresSource& figures,
                                             Watchers& watchers) {
  std::map<std::string, HttpHandler> routes =
      PageRoutes([&figures] { return figures.Newest(); });
  for (const char* path : {"/status.json", kPageStatusPath}) {
    HttpHandler& status = routes.at(path);
    status = [&watchers, answer = status] {
      watchers.Asked("/status.json", kPageInterval);
      return answer();
    };
  }
  return routes;
}

// Null without `access`.
std::function<absl::Status(absl::string_view, const Presented&)> AdmitBy(
    AccessControl* access) {
  if (access == nullptr) return nullptr;
  return [access](absl::string_view page, const Presented& presented) {
    return access->CheckPage(page, presented).status();
  };
}

}  // namespace

absl::Status CheckOpsListen(const std::string& listen, bool insecure) {
  return Validate(HttpServerOptions{.listen = listen, .insecure = insecure});
}

OpsPort::OpsPort(std::function<absl::Status()> reachable)
    : reachable_(std::move(reachable)),
      ready_(absl::UnavailableError("the server is starting")) {}

OpsPort::~OpsPort() = default;

std::vector<MetricSource> OpsPort::MetricsOf(const OpsPortOptions& options,
                                             const Sources& sources) const {
  std::vector<MetricSource> metrics;
  if (sources.metrics != nullptr) metrics.push_back(sources.metrics);
  if (sources.figures != nullptr) {
    metrics.push_back([figures = sources.figures] {
      return RunFamilies(*figures->Newest());
    });
  }
  metrics.insert(metrics.end(), {&LogFamilies, &ProcessFamilies});
  if (options.access != nullptr) {
    const HandshakeFailures failures{
        .grpc = options.handshake_failures, .ops = [this]() -> int64_t {
          const HttpServer* serving = serving_.load();
          return serving == nullptr ? 0 : serving->handshake_failures();
        }};
    metrics.push_back([access = options.access, failures] {
      return AccessFamilies(*access, failures);
    });
  }
  if (options.certificate_end != nullptr) {
    metrics.push_back(
        [end = options.certificate_end] { return CertificateFamilies(end()); });
  }
  metrics.push_back([&calls = sources.calls] { return calls.Collect(); });
  return metrics;
}

absl::StatusOr<std::unique_ptr<OpsPort>> OpsPort::Start(
    const OpsPortOptions& options, const Sources& sources) {
  std::unique_ptr<OpsPort> port(new OpsPort(options.reachable));
  std::map<std::string, HttpHandler> routes =
      OpsRoutes({.metrics = port->MetricsOf(options, sources),
                 .ready = [&port = *port] { return port.ready(); }});
  if (sources.figures != nullptr) {
    HttpHandler& metrics = routes.at("/metrics");
    metrics = [watchers = sources.watchers, answer = metrics] {
      watchers->Asked("/metrics");
      return answer();
    };
    routes.merge(RunRoutes(*sources.figures, *sources.watchers));
  }
  absl::StatusOr<std::unique_ptr<HttpServer>> http =
      HttpServer::Start({.listen = options.listen,
                         .insecure = options.insecure,
                         .routes = std::move(routes),
                         .tls = options.tls,
                         .admit = AdmitBy(options.access),
                         .takes_tokens = options.access != nullptr &&
                                         options.access->takes_tokens()});
  if (!http.ok()) return http.status();
  port->http_ = *std::move(http);
  port->serving_ = port->http_.get();
  const absl::StatusOr<ListenAddress> address =
      ParseHostPort("--ops_listen", port->address());
  if (address.ok() && !address->loopback() && !options.tls.has_value()) {
    Log(LogLevel::kWarning,
        absl::StrCat(
            "--insecure: any client that can reach ", port->address(),
            " sees this run's ",
            sources.figures == nullptr ? "metrics" : "page and metrics"));
  }
  return port;
}

const std::string& OpsPort::address() const { return http_->address(); }

absl::Status OpsPort::SetTls(const TlsContent& tls) {
  return http_->SetTls(tls);
}

void OpsPort::SetReady(absl::Status ready) {
  MutexLock lock(mu_);
  ready_ = std::move(ready);
}

absl::Status OpsPort::ready() const {
  {
    MutexLock lock(mu_);
    if (!ready_.ok()) return ready_;
  }
  return reachable_ == nullptr ? absl::OkStatus() : reachable_();
}

}  // namespace cohort
