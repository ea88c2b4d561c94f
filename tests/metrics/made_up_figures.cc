#include "tests/metrics/made_up_figures.h"

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"

namespace cohort {

RunFigures EmptyFigures(int32_t workers) {
  CoordinatorOptions options;
  options.run_id = "run1";
  options.workers = workers;
  const Coordinator core(options);
  RunFigures figures;
  figures.build = "1.2.3 (commit abc)";
  figures.now = 1000;
  figures.address = "127.0.0.1:7070";
  figures.status = core.Status(absl::Seconds(1));
  figures.policy = core.Policy(absl::Seconds(1));
  figures.policy_options = Resolve(options.policy);
  return figures;
}

RunFigures BusyFigures(int32_t workers) {
  RunFigures figures = EmptyFigures(workers);
  StatusView& status = figures.status;
  status.state = "training";
  status.phase = StatusView::Phase::kTraining;
  status.version = Version(40);
  status.samples = 400;
  status.samples_total = 1000;
  status.workers_live = workers;
  status.counts.pushes_applied = 12;
  status.counts.pushes_damped = 2;
  status.staleness = {{0, 5}, {1, 4}, {3, 3}};
  status.statistics = {.folded = 10, .damped = 2, .dropped = 0};
  for (StatusView::Worker& worker : status.workers) {
    worker.state = "live";
    worker.activity = "computing";
    worker.incarnation = Incarnation(7);
    worker.description = absl::StrCat("node-", worker.rank.value());
    worker.silent = absl::Milliseconds(500);
    worker.pushes = 3;
    worker.report = {.phases = {{"data", 0.25}, {"forward", 0.5}},
                     .cpu_cores = 1.5,
                     .resident_bytes = int64_t{3} << 30,
                     .transport = "tcp"};
  }
  figures.samples_per_second = 200;
  figures.seconds_left = 3;
  figures.model = {.parameters = 1000,
                   .weights_bytes = 4000,
                   .layers = {{.name = "bn1", .channels = 8}}};
  status.train_loss = 0.5;
  figures.sums.train_loss = 0.5;
  figures.sums.drift = {{0, 0.125}};
  figures.sums.last_arrivals = {{Rank(0), 3}, {Rank(1), 9}};
  figures.sums.barrier_wait_seconds.Add(0.003);
  figures.sums.curve.Add({.version = 40, .samples = 400, .seconds = 2});
  figures.sums.test = EvaluationPoint{
      .version = 40, .epoch = 1, .statistics = "sync", .accuracy = 0.75};
  figures.sums.evaluations = {*figures.sums.test};
  return figures;
}

}  // namespace cohort
