#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace cohort::sim {
namespace {

// With one shard.
constexpr int64_t kEventsMax = 100000;
constexpr absl::Duration kTimeMax = absl::Minutes(10);
constexpr absl::Duration kTickInterval = absl::Milliseconds(50);
// As a data shard that is asked to stop.
constexpr absl::Duration kLeavePoll = absl::Milliseconds(50);
constexpr absl::Duration kLeaveMax = absl::Seconds(20);

bool SameBits(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

bool SameBits(const SharedFloats& a, const SharedFloats& b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->size() == b->size() &&
         SameBits(a->data(), b->data(),
                  static_cast<size_t>(a->size()) * sizeof(float));
}

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         SameBits(a.data(), b.data(), a.size() * sizeof(double));
}

}  // namespace

std::string Differences(const ModelSnapshot& seen,
                        const ModelSnapshot& wanted) {
  std::string text;
  if (seen.version != wanted.version) {
    absl::StrAppend(&text, "version ", seen.version.value(), ", want ",
                    wanted.version.value(), "; ");
  }
  for (size_t p = 0; p < wanted.weights.size(); ++p) {
    if (!SameBits(seen.weights[p], wanted.weights[p])) {
      absl::StrAppend(&text, "weights of partition ", p, "; ");
    }
    for (const SlotKind& slot : AllSlots()) {
      if (!SameBits(seen.slots[p].*slot.buffer, wanted.slots[p].*slot.buffer)) {
        absl::StrAppend(&text, slot.name, " of partition ", p, "; ");
      }
    }
    if (seen.slots[p].updates != wanted.slots[p].updates) {
      absl::StrAppend(&text, "updates of partition ", p, "; ");
    }
  }
  const auto state = [](const ModelSnapshot& of) {
    return of.front_end_state == nullptr ? "" : *of.front_end_state;
  };
  if (state(seen) != state(wanted)) {
    absl::StrAppend(&text, "front-end state ", state(seen), ", want ",
                    state(wanted), "; ");
  }
  for (size_t i = 0; i < wanted.statistics->size(); ++i) {
    const StatisticsSet& a = (*seen.statistics)[i];
    const StatisticsSet& b = (*wanted.statistics)[i];
    for (size_t layer = 0; layer < b.layers.size(); ++layer) {
      const LayerStatistics& x = a.layers[layer];
      const LayerStatistics& y = b.layers[layer];
      if (!SameBits(x.mean, y.mean) || !SameBits(x.variance, y.variance) ||
          x.num_batches_tracked != y.num_batches_tracked) {
        absl::StrAppend(&text, StatisticsName(b.kind), " statistics of layer ",
                        layer, "; ");
      }
    }
  }
  return text;
}

Simulation::Simulation(const Scenario& scenario)
    : scenario_(scenario),
      random_(MixSeed(scenario.seed, 2)),
      network_(scheduler_, random_, scenario.delay_max),
      shard_network_(scheduler_, random_, network_,
                     scenario.run.coordinator.shards),
      checker_(scenario_),
      newest_(static_cast<size_t>(
          std::max(kRanksMax, scenario.run.coordinator.workers))) {}

Outcome Simulation::Run() {
  for (int32_t i = 1; i < shard_network_.shards(); ++i) {
    data_shards_.emplace_back();
    StartShard(i);
  }
  StartServer();
  for (int32_t i = 0; i < scenario_.run.coordinator.workers; ++i) {
    const absl::Duration at = scenario_.starts_at.empty()
                                  ? network_.Delay()
                                  : scenario_.starts_at[static_cast<size_t>(i)];
    scheduler_.After(at, [this, i] { StartWorker(Rank(i)); });
  }
  Tick();
  OnMoment(Moment::kBegin);
  for (const ChangeAt& change : scenario_.changes) {
    scheduler_.After(change.at, [this, &change] {
      if (!IsServing() || checker_.ended().has_value()) return;
      server_->Change(change.values);
    });
  }
  const Instant begin = scheduler_.now();
  while (!checker_.failure().has_value() && !checker_.concluded()) {
    if (!scheduler_.RunNext()) checker_.Fail("nothing happens any more");
    if (server_ != nullptr) checker_.AfterEvent(server_->core());
    if (++outcome_.events > kEventsMax * shard_network_.shards() ||
        scheduler_.now() - begin > kTimeMax) {
      checker_.Fail(absl::StrCat(
          "the run does not end: a worker waits for ever", StateText()));
    }
  }
  if (!checker_.failure().has_value()) Drain();
  Count();
  if (server_ != nullptr) {
    checker_.CheckClock(server_->core().Status(scheduler_.now()));
  }
  outcome_.elapsed = scheduler_.now() - begin;
  outcome_.commits = checker_.commits();
  outcome_.resizes = checker_.resizes();
  outcome_.started_short = checker_.started_short();
  outcome_.model_of = checker_.asked();
  outcome_.processes = static_cast<int64_t>(processes_.size());
  for (const auto& process : processes_) {
    outcome_.batches_given_up += process->batches_given_up();
    outcome_.late_verdicts += process->late_verdicts();
  }
  outcome_.failure = checker_.failure().value_or("");
  if (checker_.ended().has_value()) {
    outcome_.snapshot = checker_.results();
  }
  return outcome_;
}

std::string Simulation::StateText() const {
  if (server_ == nullptr) return "; the server is gone";
  const StatusView status = server_->core().Status(scheduler_.now());
  const PolicyView policy = server_->core().Policy(scheduler_.now());
  std::string text = absl::StrCat("; version ", status.version.value(),
                                  " attempt ", status.attempt.value(), ", ",
                                  policy.text, ": ", status.state);
  for (const StatusView::Worker& worker : status.workers) {
    absl::StrAppend(&text, "; rank ", worker.rank.value(), " ", worker.state,
                    " at ", worker.sequence.value());
  }
  return absl::StrCat(text, "; ", policy.pending_reason);
}

void Simulation::OnMoment(Moment moment) {
  const int32_t passed = moments_[moment]++;
  for (const Fault& fault : scenario_.faults) {
    if (fault.after != moment || fault.skipped != passed) continue;
    scheduler_.After(fault.at, [this, &fault] { Inflict(fault); });
  }
}

void Simulation::StartServer() {
  server_ = std::make_unique<SimServer>(
      MakeWorld(), ++incarnation_, checker_.checkpoint(),
      SimServer::Reactions{
          .on_started =
              [this] { network_.SetServer(server_.get(), incarnation_); },
          .on_closed = [this] { network_.SetServer(nullptr, incarnation_); },
          .on_stopped = [this](bool again) { OnServerStopped(again); },
          .on_moment = [this](Moment moment) { OnMoment(moment); }});
  shard_network_.SetServer(server_.get(), incarnation_);
  if (shard_network_.shards() > 1) OnMoment(Moment::kAwaiting);
  server_->Start();
}

void Simulation::OnServerStopped(bool continues) {
  scheduler_.After(
      network_.Delay(), [this, continues, incarnation = incarnation_] {
        if (server_ == nullptr || incarnation_ != incarnation) return;
        ++(continues ? outcome_.shards_lost : outcome_.stops);
        if (const std::optional<Version> saved = server_->saved()) {
          outcome_.shards_left += continues;
          if (checker_.checkpoint()->snapshot->version < *saved) {
            checker_.Fail("steps before a stop are repeated");
          }
        }
        StopServer();
        scheduler_.After(continues ? network_.Delay() : stop_lasts_,
                         [this] { StartServer(); });
      });
}

void Simulation::StartShard(int32_t index) {
  auto& shard = data_shards_[static_cast<size_t>(index) - 1];
  shard =
      std::make_unique<SimDataShard>(MakeWorld(), index, ++shard_processes_);
  shard_network_.SetShard(index, shard.get());
}

void Simulation::KillShard(int32_t index, absl::Duration lasts) {
  auto& shard = data_shards_[static_cast<size_t>(index) - 1];
  if (shard == nullptr) return;
  shard_network_.SetShard(index, nullptr);
  shard.reset();
  scheduler_.After(lasts, [this, index] { StartShard(index); });
}

void Simulation::AwaitLeft(int32_t index, int64_t process, Instant until,
                           absl::Duration lasts) {
  const auto& shard = data_shards_[static_cast<size_t>(index) - 1];
  if (shard == nullptr || shard->process() != process) return;
  if (!shard->connected() || scheduler_.now() >= until) {
    return KillShard(index, lasts);
  }
  scheduler_.After(kLeavePoll,
                   [=, this] { AwaitLeft(index, process, until, lasts); });
}

void Simulation::StopServer() {
  Count();
  ++outcome_.restarts;
  network_.SetServer(nullptr, incarnation_);
  shard_network_.SetServer(nullptr, incarnation_);
  server_.reset();
  checker_.OnServerGone();
}

void Simulation::Count() {
  if (server_ == nullptr) return;
  const StatusView status = server_->core().Status(scheduler_.now());
  outcome_.workers_lost += status.counts.workers_lost;
  outcome_.steps_aborted += status.counts.steps_aborted;
  outcome_.repeated_for_order += status.counts.steps_repeated_for_order;
  outcome_.duplicates += status.counts.pushes_duplicate;
  outcome_.replay_mismatches += status.counts.replay_mismatches;
  outcome_.dropped += status.counts.pushes_dropped;
  outcome_.policy_changes += status.counts.policy_changes;
  outcome_.fenced += status.vacancies.at(VacancyReason::kMismatch);
  checker_.CheckCounts(status);
}

void Simulation::StartWorker(Rank rank) {
  const auto process = std::count_if(
      processes_.begin(), processes_.end(),
      [rank](const auto& earlier) { return earlier->rank() == rank; });
  processes_.push_back(std::make_unique<SimWorker>(MakeWorld(), rank, process));
  newest_[static_cast<size_t>(rank.value())] = processes_.back().get();
  processes_.back()->Start();
}

void Simulation::Tick() {
  scheduler_.After(kTickInterval, [this] {
    if (IsServing()) server_->Tick();
    StartMissing();
    Tick();
  });
}

void Simulation::StartMissing() {
  // The first workers start by themselves, and lost workers are replaced. Those
  // that were notified of an end whose results are lost are needed once more.
  if (server_ == nullptr || checker_.ended().has_value() ||
      (scenario_.changes.empty() && !checker_.ended_before())) {
    return;
  }
  const int32_t workers =
      server_->core().Status(scheduler_.now()).workers_expected;
  for (int32_t i = 0; i < workers; ++i) {
    const SimWorker* worker = newest_[static_cast<size_t>(i)];
    const bool first = i < scenario_.run.coordinator.workers;
    if (worker == nullptr ? !first : worker->finished()) StartWorker(Rank(i));
  }
}

void Simulation::Inflict(const Fault& fault) {
  if (checker_.concluded()) return;
  if (fault.kind == FaultKind::kKillShard) {
    return KillShard(fault.shard, fault.lasts);
  }
  if (fault.kind == FaultKind::kLeaveShard) {
    const auto& shard = data_shards_[static_cast<size_t>(fault.shard) - 1];
    if (shard == nullptr) return;
    shard->Leave();
    return AwaitLeft(fault.shard, shard->process(),
                     scheduler_.now() + kLeaveMax, fault.lasts);
  }
  if (fault.kind == FaultKind::kStopServer) {
    if (server_ == nullptr) return;
    stop_lasts_ = fault.lasts;
    return server_->RequestStop();
  }
  if (fault.kind == FaultKind::kBreakLink) {
    return shard_network_.Break(fault.shard, fault.lasts);
  }
  if (fault.kind == FaultKind::kRestartServer) {
    if (server_ == nullptr) return;
    StopServer();
    scheduler_.After(fault.lasts, [this] { StartServer(); });
    return;
  }
  SimWorker* worker = newest_[static_cast<size_t>(fault.rank.value())];
  if (worker != nullptr && worker->alive() && !worker->frozen()) {
    InflictOn(*worker, fault);
  }
}

void Simulation::InflictOn(SimWorker& worker, const Fault& fault) {
  const SharedConnection& connection = worker.connection();
  switch (fault.kind) {
    case FaultKind::kBreakSession:
      if (connection == nullptr) return;
      return network_.Break(connection, StreamKind::kSession, fault.lasts);
    case FaultKind::kBreakExchange:
      if (connection == nullptr) return;
      if (fault.shard > 0) {
        return shard_network_.Break(connection, fault.shard);
      }
      return network_.Break(connection, StreamKind::kExchange, fault.lasts);
    case FaultKind::kBreakReduce:
      if (connection == nullptr) return;
      return network_.Break(connection, StreamKind::kReduce, fault.lasts);
    case FaultKind::kKill:
      worker.Kill();
      return Replace(worker, fault.lasts);
    case FaultKind::kVanish:
      worker.Vanish();
      return Replace(worker, fault.lasts);
    case FaultKind::kLeave:
      worker.Leave();
      return Replace(worker, fault.lasts);
    case FaultKind::kHang:
      return worker.Hang();
    case FaultKind::kMiscount:
      return worker.Miscount();
    case FaultKind::kFreeze:
      return Freeze(worker, fault);
    case FaultKind::kRestartServer:
    case FaultKind::kKillShard:
    case FaultKind::kBreakLink:
    case FaultKind::kLeaveShard:
    case FaultKind::kStopServer:
      return;
  }
}

void Simulation::Freeze(SimWorker& worker, const Fault& fault) {
  worker.Freeze();
  if (fault.replaced) Replace(worker, fault.lasts / 2);
  scheduler_.After(fault.lasts, [this, &worker, replaced = fault.replaced] {
    worker.Thaw();
    if (!replaced) return;
    // Messages that it sends before it is notified must do no harm.
    scheduler_.After(scenario_.delay_max * 4, [&worker] {
      if (worker.alive()) worker.Kill();
    });
  });
}

void Simulation::Replace(SimWorker& worker, absl::Duration delay) {
  scheduler_.After(delay, [this, rank = worker.rank()] { StartWorker(rank); });
}

void Simulation::Drain() {
  struct Connected {
    SimWorker* worker;
    SharedConnection connection;
  };
  std::vector<Connected> connected;
  for (const auto& process : processes_) {
    const SharedConnection& connection = process->connection();
    if (!process->alive() || process->frozen() || process->hung() ||
        connection == nullptr || !server_->HasSession(*connection) ||
        connection->stream(StreamKind::kSession).cut) {
      continue;
    }
    connected.push_back({process.get(), connection});
  }
  const Instant end = scheduler_.now() + scenario_.delay_max * 20;
  while (scheduler_.now() < end && scheduler_.RunNext()) {
  }
  for (const Connected& c : connected) {
    if (c.worker->connection() != c.connection || !c.worker->alive()) continue;
    if (!c.worker->finished()) {
      checker_.Fail(absl::StrCat("rank ", c.worker->rank().value(),
                                 " was not notified of the end of the run"));
    }
    if (c.worker->awaits_verdict()) {
      checker_.Fail(
          absl::StrCat("rank ", c.worker->rank().value(), " got no verdict"));
    }
  }
}

}  // namespace cohort::sim
