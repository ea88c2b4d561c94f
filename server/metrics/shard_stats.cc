#include "server/metrics/shard_stats.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/core/model/shard_place.h"

namespace cohort {

ShardStats::ShardStats(const std::vector<std::string>& addresses,
                       std::shared_ptr<const Clock> clock)
    : clock_(std::move(clock)), shards_(addresses.size() + 1) {
  for (State& shard : shards_) {
    shard.since = clock_->Now();
    shard.since_wall = absl::Now();
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    shards_[i + 1].address = addresses[i];
  }
  // This process.
  shards_[0].connected = true;
}

std::optional<absl::Duration> ShardStats::Attached(int32_t shard,
                                                   int64_t generation) {
  const absl::Time wall = absl::Now();
  MutexLock lock(mu_);
  State& state = At(shard);
  const Instant now = clock_->Now();
  std::optional<absl::Duration> gone;
  if (!state.connected) {
    if (state.generation > 0) gone = now - state.since;
    state.since = now;
    state.since_wall = wall;
  }
  state.connected = true;
  state.missing_because.clear();
  state.generation = generation;
  // Shard 0 has no connection; its row shows the generation of the run.
  shards_[0].generation = generation;
  return gone;
}

void ShardStats::Lost(int32_t shard, const std::string& why) {
  MutexLock lock(mu_);
  State& state = At(shard);
  if (!state.connected) return;
  ++state.losses;
  GoneLocked(state, why);
}

void ShardStats::Missing(int32_t shard, const std::string& why) {
  MutexLock lock(mu_);
  State& state = At(shard);
  // Without the reason of a loss: shard 0 has ended the connection itself.
  if (state.connected) GoneLocked(state, "");
  state.missing_because = why;
}

void ShardStats::GoneLocked(State& state, const std::string& why) {
  state.connected = false;
  state.since = clock_->Now();
  state.since_wall = absl::Now();
  state.lost_because = why;
}

std::string ShardStats::WaitingText() const {
  MutexLock lock(mu_);
  const Instant now = clock_->Now();
  std::vector<std::string> absent;
  for (size_t i = 1; i < shards_.size(); ++i) {
    const State& state = shards_[i];
    if (state.connected) continue;
    const std::string name =
        absl::StrCat("data shard ", i, " at ", state.address);
    // Errors of a connection begin with the shard's name (ShardConnection).
    const absl::string_view why =
        absl::StripPrefix(WhyGone(state), absl::StrCat(name, ": "));
    absent.push_back(absl::StrCat(
        name,
        state.generation > 0
            ? absl::StrCat(", gone for ", SecondsText(now - state.since))
            : ", not there yet",
        why.empty() ? "" : ": ", why));
  }
  if (absent.empty()) return "";
  return absl::StrCat("waiting for ", absl::StrJoin(absent, "; "));
}

void ShardStats::Planned(int64_t transaction) {
  MutexLock lock(mu_);
  transaction_ = transaction;
  planned_ = clock_->Now();
  for (State& shard : shards_) shard.folded.reset();
}

void ShardStats::Folded(int32_t shard, int64_t transaction) {
  MutexLock lock(mu_);
  if (transaction == transaction_) At(shard).folded = clock_->Now();
}

std::vector<ShardStats::Prepared> ShardStats::Committed(int64_t transaction) {
  std::vector<Prepared> prepared;
  MutexLock lock(mu_);
  if (transaction != transaction_) return prepared;
  for (size_t i = 0; i < shards_.size(); ++i) {
    State& state = shards_[i];
    if (!state.folded.has_value()) continue;
    state.prepare = *state.folded - planned_;
    state.prepare_total += *state.prepare;
    prepared.push_back({.shard = static_cast<int32_t>(i),
                        .begin = planned_,
                        .end = *state.folded});
    state.folded.reset();
  }
  // The time that the slowest shard alone has cost: all others were done when
  // the second slowest was. A shard that folds alone keeps none waiting.
  if (prepared.size() < 2) return prepared;
  std::vector<Prepared> by_end = prepared;
  std::sort(by_end.begin(), by_end.end(),
            [](const Prepared& a, const Prepared& b) { return a.end < b.end; });
  const Prepared& last = by_end.back();
  At(last.shard).holdup_total += last.end - by_end[by_end.size() - 2].end;
  return prepared;
}

std::vector<ShardFigures> ShardStats::figures(
    const RegisteredModel* model) const {
  std::vector<ShardFigures> figures;
  {
    MutexLock lock(mu_);
    for (size_t i = 0; i < shards_.size(); ++i) {
      const State& state = shards_[i];
      ShardFigures shard{
          .shard = static_cast<int32_t>(i),
          .address = state.address,
          .connected = state.connected,
          .lost_because = WhyGone(state),
          .losses = state.losses,
          .generation = state.generation,
          .prepare_seconds_total = absl::ToDoubleSeconds(state.prepare_total),
          .holdup_seconds_total = absl::ToDoubleSeconds(state.holdup_total)};
      if (i > 0) {
        shard.since =
            absl::ToDoubleSeconds(state.since_wall - absl::UnixEpoch());
      }
      if (state.prepare.has_value()) {
        shard.prepare_seconds = absl::ToDoubleSeconds(*state.prepare);
      }
      figures.push_back(std::move(shard));
    }
  }
  if (model == nullptr) return figures;
  const auto count = static_cast<int32_t>(figures.size());
  for (size_t p = 0; p < model->partitions.size(); ++p) {
    ShardFigures& owner = figures[static_cast<size_t>(
        ShardPlace::OwnerOf(static_cast<int32_t>(p), count))];
    ++owner.partitions;
    owner.weights_bytes +=
        model->partitions[p].elements * static_cast<int64_t>(sizeof(float));
  }
  return figures;
}

}  // namespace cohort
