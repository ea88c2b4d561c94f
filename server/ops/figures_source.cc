#include "server/ops/figures_source.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "common/build_info.h"
#include "common/ops/process_collector.h"

namespace cohort {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(250);

int64_t BytesOf(const StatisticsSets& sets) {
  size_t numbers = 0;
  for (const StatisticsSet& set : sets) {
    for (const LayerStatistics& layer : set.layers) {
      numbers += layer.mean.size() + layer.variance.size();
    }
  }
  return static_cast<int64_t>(numbers * sizeof(double));
}

std::optional<int64_t> FreeBytes(const RunFilesOptions& options) {
  const std::string& dir = options.checkpoint_dir.empty()
                               ? options.results_dir
                               : options.checkpoint_dir;
  if (dir.empty()) return std::nullopt;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(space.available);
}

ModelFigures GatherModel(RunHost& run) {
  ModelFigures figures;
  const SharedModel model = run.partitions().model();
  const absl::StatusOr<SharedVersion> newest = run.Find(std::nullopt);
  if (model == nullptr || !newest.ok()) return figures;
  for (const Partition& partition : model->partitions) {
    figures.parameters += partition.elements;
  }
  const DataShardFigures held = run.partitions().figures();
  figures.weights_bytes = held.weights_bytes;
  figures.optimizer_bytes = held.optimizer_bytes;
  figures.batch_norm_bytes = BytesOf(*(*newest)->statistics);
  for (const BatchNormSpec& layer : model->layout.batch_norms) {
    figures.layers.push_back({.name = layer.name, .channels = layer.channels});
  }
  return figures;
}

}  // namespace

FiguresSource::FiguresSource(RunHost& run, const RunStats& stats,
                             const RunFiles& files, const Clock& clock,
                             std::function<RunLinks()> links)
    : run_(run),
      stats_(stats),
      files_(files),
      clock_(clock),
      links_(std::move(links)),
      memory_limit_bytes_(MemoryLimitBytes()) {
  Refreshed();
  task_ = std::make_unique<PeriodicTask>("figures", kInterval,
                                         [this] { Refreshed(); });
}

SharedFigures FiguresSource::Newest() const {
  MutexLock lock(mu_);
  return newest_;
}

SharedFigures FiguresSource::Refreshed() {
  MutexLock gather(gather_mu_);
  const SharedFigures figures = Gather();
  // The old figures are freed after the lock is released.
  SharedFigures old = figures;
  MutexLock lock(mu_);
  newest_.swap(old);
  return figures;
}

SharedFigures FiguresSource::Gather() {
  auto figures = std::make_shared<RunFigures>();
  const RunLinks links = links_();
  figures->build = BuildText();
  figures->now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  figures->uptime = stats_.uptime();
  figures->address = links.address;
  figures->dashboards_url = links.dashboards_url;
  // Before the status, so that the sentence names a shard that is gone here.
  RunHostFigures of_run = run_.figures();
  figures->service = of_run.service;
  figures->shards = std::move(of_run.shards);
  figures->status = run_.Status();
  figures->policy = run_.Policy();
  const CoordinatorOptions options = run_.options();
  figures->policy_options = Resolve(options.policy);
  figures->checkpoint_every = options.checkpoint_every;
  figures->model = GatherModel(run_);
  figures->sums = stats_.sums();
  figures->checkpoint = files_.figures();
  figures->process = ReadProcessFigures();
  figures->storage_free_bytes = FreeBytes(files_.options());
  figures->memory_limit_bytes = memory_limit_bytes_;
  rate_.Add(clock_.Now(), figures->status);
  AddRate(rate_, *figures);
  return figures;
}

}  // namespace cohort
