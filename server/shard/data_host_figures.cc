// The numbers of a data shard.

#include "server/core/optimizer/slots.h"
#include "server/shard/data_host.h"

namespace cohort {

DataShardFigures DataHost::figures() const {
  DataShardFigures figures;
  figures.service = {
      .inflight_bytes = gradient_bytes_.held_bytes(),
      .push_bytes_float32 = ServiceCounters::Read(counters_.push_bytes_float32),
      .push_bytes_bfloat16 =
          ServiceCounters::Read(counters_.push_bytes_bfloat16),
      .pull_bytes_float32 = ServiceCounters::Read(counters_.pull_bytes_float32),
      .pull_bytes_bfloat16 =
          ServiceCounters::Read(counters_.pull_bytes_bfloat16)};
  SharedSnapshot newest;
  {
    MutexLock lock(mu_);
    figures.run_id = attachment_.run_id;
    figures.run_name = attachment_.run_name;
    figures.shard = attachment_.place.index;
    figures.connected = link_ != nullptr;
    figures.generation = attachment_.generation;
    figures.connections = connections_;
    figures.fold_seconds = fold_seconds_;
    figures.service.folds_waiting = running_;
    if (node_.has_value()) newest = node_->Read(node_->newest());
  }
  if (newest == nullptr) return figures;
  figures.version = newest->version.value();
  const auto bytes = [](const SharedFloats& floats) {
    return floats == nullptr
               ? 0
               : floats->size() * static_cast<int64_t>(sizeof(float));
  };
  for (const SharedFloats& weights : newest->weights) {
    if (weights != nullptr) ++figures.partitions;
    figures.weights_bytes += bytes(weights);
  }
  for (const Slots& slots : newest->slots) {
    figures.optimizer_bytes += BytesOf(slots);
  }
  return figures;
}

}  // namespace cohort
