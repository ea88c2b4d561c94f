#include "tests/sim/sim_data_shard.h"

#include <deque>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

class SimDataShard::SimClock final : public Clock {
 public:
  explicit SimClock(const Scheduler& scheduler) : scheduler_(scheduler) {}
  Instant Now() const override { return scheduler_.now(); }

 private:
  const Scheduler& scheduler_;
};

// The data shard's side of a link.
class SimDataShard::LinkEnd final : public CoordinatorStream {
 public:
  LinkEnd(SimDataShard& shard, std::weak_ptr<ShardLink> link)
      : shard_(shard), link_(std::move(link)) {}

  void End(const absl::Status&) override {
    const SharedLink link = link_.lock();
    if (link == nullptr || shard_.dead_) return;
    shard_.world_.shards.EndFromShard(link);
  }
  void SendGradient(const RemoteGradient& gradient) override {
    Send([index = shard_.index_, gradient](SimServer& server) {
      server.Arrived(index, gradient);
    });
  }
  void SendFold(const FoldReport& report) override {
    Send([report](SimServer& server) { server.Folded(report); });
  }
  // The simulated network tells of the end of a link itself.
  void SendAlive() override {}
  void SendLeaving() override {
    const SharedLink link = link_.lock();
    Send([link](SimServer& server) { server.OnLeaving(link); });
  }

 private:
  void Send(ShardNetwork::ServerEvent event) {
    const SharedLink link = link_.lock();
    if (link == nullptr || shard_.dead_) return;
    shard_.world_.shards.ToServer(link, std::move(event));
  }

  SimDataShard& shard_;
  // It refers to this.
  const std::weak_ptr<ShardLink> link_;
};

// The data shard's side of a worker's stream.
class SimDataShard::WorkerStream final : public ExchangeStream {
 public:
  WorkerStream(SimDataShard& shard, int64_t number,
               const SharedConnection& connection)
      : shard_(shard), number_(number), connection_(connection) {}

  void End(const absl::Status&) override {
    if (shard_.dead_) return;
    const SharedConnection connection = connection_.lock();
    if (connection == nullptr) return;
    shard_.ending_.emplace(number_,
                           std::static_pointer_cast<WorkerStream>(
                               connection->to_shard(shard_.index_).end));
  }
  void Resume() override { shard_.Resume(*this); }
  void SendWeights(const WeightsMessage& weights) override {
    const SharedConnection connection = connection_.lock();
    if (connection == nullptr) return;
    shard_.world_.shards.ToWorker(
        connection, shard_.index_,
        [weights](SimWorker& worker) { worker.OnWeights(weights); });
  }
  void SendVerdict(const effect::SendVerdict&) override {
    shard_.world_.checker.Fail("a data shard sends a verdict");
  }

  const std::weak_ptr<Connection>& connection() const { return connection_; }

  // Messages since it was paused wait.
  bool paused = false;
  std::deque<ShardNetwork::ShardEvent> held;

 private:
  SimDataShard& shard_;
  const int64_t number_;
  // It refers to this.
  const std::weak_ptr<Connection> connection_;
};

SimDataShard::SimDataShard(World world, int32_t index, int64_t process)
    : world_(world),
      index_(index),
      process_(process),
      clock_(std::make_unique<SimClock>(world.scheduler)),
      host_({.fold =
                 [this](FoldJob job, PartitionsHost::OnFolded done) {
                   StartFold(std::move(job), std::move(done));
                 }},
            *clock_) {}

SimDataShard::~SimDataShard() {
  dead_ = true;
  if (link_ != nullptr) host_.Detach(link_->end.get());
  // The host waits for them.
  for (auto& [number, fold] : folds_) fold.done(std::move(fold.result));
}

template <typename Call>
auto SimDataShard::Handle(Call call) {
  const absl::Cleanup end = [this] { EndStreams(); };
  return call();
}

void SimDataShard::EndStreams() {
  for (const auto& [number, stream] : std::exchange(ending_, {})) {
    host_.streams().Forget(stream.get());
    const SharedConnection connection = stream->connection().lock();
    if (connection != nullptr) {
      world_.shards.EndFromShard(connection, index_);
    }
  }
}

// ---- shard 0

void SimDataShard::Attach(const SharedLink& link) {
  auto end = std::make_shared<LinkEnd>(*this, link);
  const RunSpec& run = world_.scenario.run;
  const absl::Status status = Handle([&] {
    return host_.Attach(
        {.run_id = run.coordinator.run_id,
         .generation = link->generation,
         .place = {.index = index_, .count = run.coordinator.shards},
         .workers = run.coordinator.workers,
         // A restarted server does not wait for the end of a link that it does
         // not know.
         .authenticated = true},
        end);
  });
  if (!status.ok()) {
    // Its process is gone by now, if another one has taken over; a data shard
    // that stops is Unavailable.
    if (link->generation >= generation_ && !absl::IsUnavailable(status)) {
      world_.checker.Fail(absl::StrCat("attach: ", status.ToString()));
    }
    return world_.shards.EndFromShard(link);
  }
  if (link->generation < generation_) {
    world_.checker.Fail("an older start of shard 0 attaches");
  }
  link->end = std::move(end);
  link_ = link;
  generation_ = link->generation;
  world_.shards.ToServer(
      link, [link](SimServer& server) { server.OnAttached(link); });
}

void SimDataShard::Install(const SharedLink& link,
                           const Installation& installation) {
  if (link->end == nullptr) return;
  Check(link,
        Handle([&] { return host_.Install(link->end.get(), installation); }));
}

void SimDataShard::Command(const SharedLink& link, ShardCommand command) {
  if (link->end == nullptr) return;
  Check(link, Handle([&] {
          return host_.Handle(link->end.get(), std::move(command));
        }));
}

void SimDataShard::Check(const SharedLink& link, const absl::Status& status) {
  if (status.ok()) return;
  if (link == link_ || !absl::IsAborted(status)) {
    world_.checker.Fail(
        absl::StrCat("data shard ", index_, ": ", status.ToString()));
  }
}

void SimDataShard::OnLinkEnd(const SharedLink& link) {
  if (link->end == nullptr) return;
  Handle([&] { host_.Detach(link->end.get()); });
}

void SimDataShard::Fetch(int32_t generation, Version version,
                         PartitionsHost::OnRead done) {
  Handle([&] {
    host_.Read({.run_id = world_.scenario.run.coordinator.run_id,
                .generation = generation,
                .shard = index_},
               version, std::move(done));
  });
}

// ---- workers

void SimDataShard::Gradient(const SharedConnection& connection,
                            const Sender& sender, const PushKey& key,
                            const ReceivedGradient& message) {
  std::shared_ptr<ExchangeStream>& end = connection->to_shard(index_).end;
  if (end == nullptr) {
    end = std::make_shared<WorkerStream>(*this, next_stream_++, connection);
    const absl::Status admitted = host_.streams().Admit(end);
    if (!admitted.ok()) world_.checker.Fail(admitted.ToString());
  }
  const auto stream = std::static_pointer_cast<WorkerStream>(end);
  if (stream->paused) {
    stream->held.push_back([=](SimDataShard& shard) {
      shard.Gradient(connection, sender, key, message);
    });
    return;
  }
  Handle([&] {
    const absl::StatusOr<Reading> reading =
        host_.Gradient(sender, key, message, stream);
    if (reading.ok()) {
      stream->paused = *reading == Reading::kPaused;
      return;
    }
    if (!absl::IsUnavailable(reading.status())) {
      world_.checker.Fail(
          absl::StrCat("gradient: ", reading.status().ToString()));
    }
    stream->End(reading.status());
  });
}

void SimDataShard::Resume(WorkerStream& stream) {
  if (!std::exchange(stream.paused, false) || dead_) return;
  const SharedConnection connection = stream.connection().lock();
  if (connection == nullptr) return;
  world_.shards.OnShard(index_, process_, world_.network.Delay(),
                        [connection, &stream](SimDataShard& shard) {
                          const DataStream& data =
                              connection->to_shard(shard.index_);
                          std::deque<ShardNetwork::ShardEvent> held;
                          held.swap(stream.held);
                          for (ShardNetwork::ShardEvent& message : held) {
                            // If it is paused again, the rest is queued again.
                            if (!data.stream.cut && !data.stream.ended)
                              message(shard);
                          }
                        });
}

void SimDataShard::OnWorkerClosed(const SharedConnection& connection) {
  const std::shared_ptr<ExchangeStream>& end = connection->to_shard(index_).end;
  if (end != nullptr) host_.streams().Forget(end.get());
}

void SimDataShard::Read(int32_t generation, Version version,
                        PartitionsHost::OnRead done) {
  auto checked = [this, version, done = std::move(done)](
                     absl::StatusOr<SharedSnapshot> snapshot) mutable {
    if (!dead_) CheckRead(version, snapshot.status());
    done(std::move(snapshot));
  };
  Fetch(generation, version, std::move(checked));
}

// The other way round nothing follows: what shard 0 no longer reads may be held
// for a while.
void SimDataShard::CheckRead(Version version, const absl::Status& status) {
  SimServer* server = world_.shards.Server(generation_);
  if (!absl::IsOutOfRange(status) || server == nullptr ||
      !server->core().Read(version).ok()) {
    return;
  }
  world_.checker.Fail(absl::StrCat("data shard ", index_, " has no version ",
                                   version.value(),
                                   ", which shard 0 still reads"));
}

// ---- folds

void SimDataShard::StartFold(const FoldJob& job,
                             PartitionsHost::OnFolded done) {
  world_.checker.OnFold({.shard = index_, .generation = generation_}, job);
  const int64_t number = next_fold_++;
  folds_[number] = {.result = RunFold(job, kernels::ReferenceBackend(), pool_),
                    .done = std::move(done)};
  world_.shards.OnShard(
      index_, process_, world_.network.Delay(),
      [number](SimDataShard& shard) { shard.EndFold(number); });
}

void SimDataShard::EndFold(int64_t number) {
  Fold fold = std::move(folds_.at(number));
  folds_.erase(number);
  Handle([&] { fold.done(std::move(fold.result)); });
}

}  // namespace cohort::sim
