#include "tests/bench/scrape_bench.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/ops/http_server.h"
#include "common/ops/log_collector.h"
#include "common/ops/ops_routes.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/metrics/grpc_metrics.h"
#include "server/metrics/run_metrics.h"
#include "server/rpc/call_interceptor.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/tcp_baseline.h"
#include "tests/fakes/raw_http.h"

namespace cohort::bench {
namespace {

absl::Status JoinAll(int32_t workers, Coordinator& core) {
  Effects ignored;
  for (int32_t i = 0; i < workers; ++i) {
    COHORT_RETURN_IF_ERROR(
        core.Join(SessionId(i + 1),
                  {.batch_size = 1,
                   .description = absl::StrCat("node-", i, ", process 4711")},
                  absl::Seconds(1), ignored));
  }
  return absl::OkStatus();
}

SharedFigures Gather(const Coordinator& core, const CoordinatorOptions& run) {
  auto figures = std::make_shared<RunFigures>();
  figures->status = core.Status(absl::Seconds(2));
  figures->policy = core.Policy(absl::Seconds(2));
  figures->policy_options = Resolve(run.policy);
  return figures;
}

}  // namespace

absl::StatusOr<ScrapeCost> TimeScrapes(int32_t workers, int32_t scrapes) {
  CoordinatorOptions run;
  run.run_id = "bench";
  run.workers = workers;
  Coordinator core(run);
  COHORT_RETURN_IF_ERROR(JoinAll(workers, core));
  ScrapeCost cost;
  SharedFigures figures;
  const double gather_begin = ProcessSeconds();
  for (int32_t i = 0; i < scrapes; ++i) figures = Gather(core, run);
  cost.gather_cpu_seconds = (ProcessSeconds() - gather_begin) / scrapes;

  const GrpcMetrics calls(CoordinatorMethods());
  HttpServerOptions options{.listen = "127.0.0.1:0"};
  options.routes = OpsRoutes(
      {.metrics = {[figures] { return RunFamilies(*figures); }, &LogFamilies,
                   &ProcessFamilies, [&calls] { return calls.Collect(); }}});
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                          HttpServer::Start(options));
  const SteadyClock clock;
  std::vector<double> seconds;
  const double begin = ProcessSeconds();
  for (int32_t i = 0; i < scrapes; ++i) {
    const Instant asked = clock.Now();
    const HttpAnswer answer = HttpGet(server->address(), "/metrics");
    seconds.push_back(absl::ToDoubleSeconds(clock.Now() - asked));
    if (answer.status != 200) return absl::InternalError("no page");
    cost.page_bytes = static_cast<int64_t>(answer.body.size());
  }
  cost.cpu_seconds = (ProcessSeconds() - begin) / scrapes;
  cost.seconds = Quantile(seconds, 0.5);
  return cost;
}

}  // namespace cohort::bench
