#include "worker/python/moving_buffers.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/moving_average.h"

namespace cohort {
namespace {

// Equal bits, so that a NaN is equal to itself.
bool SameBits(const float* a, const std::vector<double>& b) {
  for (size_t i = 0; i < b.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) !=
        std::bit_cast<uint32_t>(static_cast<float>(b[i]))) {
      return false;
    }
  }
  return true;
}

}  // namespace

MovingBuffers::MovingBuffers(std::vector<BatchNormSpec> layers)
    : specs_(std::move(layers)), layers_(specs_.size()) {}

void MovingBuffers::Attach(std::vector<Place> places) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].place = places[i];
}

LayerStatistics MovingBuffers::ReadFrom(const Place& place,
                                        size_t channels) const {
  return {.mean = {place.mean, place.mean + channels},
          .variance = {place.variance, place.variance + channels},
          .num_batches_tracked = place.tracked == nullptr ? 0 : *place.tracked};
}

bool MovingBuffers::Holds(const Place& place, const LayerStatistics& values) {
  return SameBits(place.mean, values.mean) &&
         SameBits(place.variance, values.variance) &&
         (place.tracked == nullptr ||
          *place.tracked == values.num_batches_tracked);
}

void MovingBuffers::Put(const LayerStatistics& values, const Place& place) {
  std::copy(values.mean.begin(), values.mean.end(), place.mean);
  std::copy(values.variance.begin(), values.variance.end(), place.variance);
  if (place.tracked != nullptr) *place.tracked = values.num_batches_tracked;
}

void MovingBuffers::Load(absl::Span<const LayerStatistics> version) {
  known_ = !version.empty() || layers_.empty();
  for (size_t i = 0; i < version.size(); ++i) {
    if (layers_[i].place.mean != nullptr) layers_[i].version = version[i];
  }
  for (Layer& layer : layers_) {
    if (layer.place.mean == nullptr || !layer.version.has_value()) continue;
    layer.last = layer.captured.value_or(*layer.version);
    Put(layer.last, layer.place);
  }
}

void MovingBuffers::Show(absl::Span<const LayerStatistics> other) {
  for (size_t i = 0; i < other.size(); ++i) {
    const Place& place = layers_[i].place;
    if (place.mean != nullptr) Put(other[i], place);
  }
}

void MovingBuffers::Capture() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.place.mean == nullptr || !layer.version.has_value() ||
        Holds(layer.place, layer.last)) {
      continue;
    }
    layer.captured =
        ReadFrom(layer.place, static_cast<size_t>(specs_[i].channels));
    layer.last = *layer.captured;
    // Put back as they were.
    if (Holds(layer.place, *layer.version)) layer.captured.reset();
  }
}

void MovingBuffers::Begin(bool moves) {
  moves_ = moves;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.changes = {.layer = static_cast<int32_t>(i)};
    if (!layer.captured.has_value()) continue;
    layer.changes.writes.push_back({.values = *layer.captured});
  }
}

void MovingBuffers::NoteWrite(Layer& layer, const Place& place,
                              size_t channels) {
  if (!layer.version.has_value() || Holds(place, layer.last)) return;
  layer.last = ReadFrom(place, channels);
  std::vector<StatisticsWrite>& writes = layer.changes.writes;
  StatisticsWrite write{
      .after_calls = static_cast<int32_t>(layer.changes.calls.size()),
      .values = layer.last};
  // Only the last of several before the same call counts.
  if (!writes.empty() && writes.back().after_calls == write.after_calls) {
    writes.back() = std::move(write);
  } else {
    writes.push_back(std::move(write));
  }
}

void MovingBuffers::Move(const Call& call) {
  const Update& update = call.update;
  const Place& place = update.place;
  const Moments& all = *call.all;
  const bool registered = call.place.layer >= 0;
  const size_t channels = all.first.size();
  Layer* const layer =
      registered ? &layers_[static_cast<size_t>(call.place.layer)] : nullptr;
  const bool own = registered && update.own && place.mean != nullptr;
  if (own) NoteWrite(*layer, place, channels);
  if (registered) {
    layer->changes.calls.push_back(
        {.part = call.place.part,
         .site = call.place.site,
         .call = call.place.call,
         .momentum = own ? update.momentum : std::optional<double>(0),
         .epsilon = call.epsilon,
         .moves = own,
         .counts = own && place.tracked != nullptr});
  }
  // If no member has samples, nothing moves.
  if (place.mean == nullptr || all.count == 0 || (own && !moves_)) return;
  int64_t tracked = 1;
  if (place.tracked != nullptr) tracked = ++*place.tracked;
  const double weight =
      update.momentum.value_or(1.0 / static_cast<double>(tracked));
  kernels::UpdateMovingAverage({.weight = weight,
                                .divisor = static_cast<double>(all.count - 1),
                                .channels = channels,
                                .batch_mean = all.first.data(),
                                .batch_m2 = all.second.data()},
                               place.mean, place.variance);
  if (own) layer->last = ReadFrom(place, channels);
}

absl::Status MovingBuffers::Read(size_t index) {
  Layer& layer = layers_[index];
  const std::string& name = specs_[index].name;
  if (!known_) {
    return absl::FailedPreconditionError(absl::StrCat(
        name,
        ": an evaluation pass within a step reads moving statistics, but this "
        "run's policy keeps none that belong to the weights; use "
        "--bn_statistics=sync"));
  }
  if (layer.place.mean != nullptr) {
    NoteWrite(layer, layer.place, static_cast<size_t>(specs_[index].channels));
  }
  const auto calls = static_cast<int32_t>(layer.changes.calls.size());
  if (calls > 0 && !moves_) {
    return absl::FailedPreconditionError(absl::StrCat(
        name,
        ": an evaluation pass reads moving statistics after a training call in "
        "the same step, but under this policy they move only at its end; use "
        "--aggregation=sync, --bn_statistics=sync and global normalisation, or "
        "evaluate first"));
  }
  std::vector<int32_t>& reads = layer.changes.reads;
  if (reads.empty() || reads.back() != calls) reads.push_back(calls);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerChanges>> MovingBuffers::Close() {
  std::vector<LayerChanges> changes;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.place.mean != nullptr) {
      NoteWrite(layer, layer.place, static_cast<size_t>(specs_[i].channels));
    }
    LayerChanges& own = layer.changes;
    if (!own.writes.empty() && !moves_) {
      return absl::FailedPreconditionError(absl::StrCat(
          specs_[i].name,
          ": its moving statistics were written by the training program, but "
          "under this policy the server alone moves them; use "
          "--aggregation=sync, --bn_statistics=sync and global normalisation, "
          "or "
          "write them before cohort.join()"));
    }
    if (own.calls.empty() && own.writes.empty() && own.reads.empty()) continue;
    changes.push_back(own);
  }
  return changes;
}

void MovingBuffers::Committed() {
  for (Layer& layer : layers_) layer.captured.reset();
}

}  // namespace cohort
