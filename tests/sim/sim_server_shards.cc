// A simulated server with data shards in other processes: what the product's
// Shard and Server do for them.

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "tests/sim/sim_data_shard.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {
namespace {

// Links end; data shards do not hang.
constexpr int kSilentMax = 1;

}  // namespace

void SimServer::Start() {
  for (int32_t shard = 1; shard < world_.shards.shards(); ++shard) {
    data_shards_.push_back(
        {.link = nullptr,
         .connection = ShardConnection(absl::StrCat(shard), kSilentMax)});
    Attach(shard);
  }
  if (!IsShared()) Begin();
}

// No worker is let in before all are there.
void SimServer::Attach(int32_t shard) {
  if (stopping_) return;
  DataShard& to = At(shard);
  to.connection.Begin();
  to.link = world_.shards.Connect(shard);
  if (to.link == nullptr) {
    return world_.shards.OnServer(
        absl::Milliseconds(10) + world_.network.Delay(),
        [shard](SimServer& server) { server.Attach(shard); });
  }
  world_.shards.ToShard(
      to.link, [link = to.link](SimDataShard& at) { at.Attach(link); });
}

void SimServer::OnAttached(const SharedLink& link) {
  if (stopping_) return;
  At(link->shard).connection.Attached();
  if (++attached_ == world_.shards.shards() - 1) Begin();
}

void SimServer::OnLeaving(const SharedLink& link) {
  if (stopping_) return;
  At(link->shard).connection.Leaving();
  if (lifecycle_.ShardLeaving(link->shard)) {
    return world_.shards.EndFromServer(link);
  }
  Proceed();
}

void SimServer::OnLinkEnd(const SharedLink& link) {
  DataShard& at = At(link->shard);
  // Both sides may end it.
  if (at.link != link || !at.connection.Usable().ok()) return;
  const bool lost = at.connection.Ended(absl::UnavailableError("it is gone"));
  for (const auto& [number, fetch] : std::map(fetches_)) {
    if (fetch.shard == link->shard) EndFetch(number, at.connection.Usable());
  }
  if (lost) {
    lifecycle_.ShardLost(at.connection.Usable().message());
    return Proceed();
  }
  if (at.connection.result().has_value()) return;
  world_.shards.OnServer(
      absl::Milliseconds(10) + world_.network.Delay(),
      [shard = link->shard](SimServer& server) { server.Attach(shard); });
}

void SimServer::Begin() {
  if (restored_model_ != nullptr) {
    for (int32_t i = 1; i < world_.shards.shards(); ++i) {
      Install(i, restored_model_, restored_snapshot_);
    }
  }
  restored_model_ = nullptr;
  restored_snapshot_ = nullptr;
  lifecycle_.Attached();
  started_ = true;
  reactions_.on_started();
  Proceed();
}

// ---- the main thread

void SimServer::RequestStop() {
  lifecycle_.RequestStop();
  Proceed();
}

void SimServer::Proceed() {
  if (busy_ || stopping_) return;
  // The start waits for data shards.
  if (!started_) {
    if (lifecycle_.GivesUpShards()) Stop();
    return;
  }
  switch (lifecycle_.TakeTask()) {
    case ServerLifecycle::Task::kWait:
      return;
    case ServerLifecycle::Task::kStoreMilestone:
      return StoreMilestone();
    case ServerLifecycle::Task::kSaveForLeaving:
      return SaveForLeaving();
    case ServerLifecycle::Task::kStay:
      // No client looks at it.
      return Proceed();
    case ServerLifecycle::Task::kStop:
      return Stop();
  }
}

void SimServer::StoreMilestone() {
  busy_ = true;
  reactions_.on_moment(Moment::kMilestone);
  world_.checker.OnStateTaken();
  Write write = *std::exchange(milestone_, std::nullopt);
  write.done = [](SimServer& server, const absl::StatusOr<RunState>& whole) {
    server.busy_ = false;
    if (whole.ok()) {
      if (whole->last) server.whole_ = whole->snapshot;
      server.Handle([&](Effects& out) {
        server.core_->CheckpointStored(server.world_.scheduler.now(), out);
      });
    } else {
      server.lifecycle_.ShardLost(whole.status().message());
    }
    server.Proceed();
  };
  Save(std::move(write));
}

void SimServer::SaveForLeaving() {
  busy_ = true;
  reactions_.on_moment(Moment::kLeaving);
  const auto done = [](SimServer& server,
                       const absl::StatusOr<RunState>& whole) {
    server.busy_ = false;
    if (server.lifecycle_.LeavingShardSaved("it leaves") && whole.ok()) {
      server.saved_ = whole->snapshot->version;
    }
    server.Proceed();
  };
  absl::StatusOr<RunState> state = core_->State();
  // Nothing is registered.
  if (!state.ok()) return done(*this, state);
  world_.checker.OnStateTaken();
  const SharedVersion keep = state->snapshot->pin;
  Save({.state = WithWeights(*std::move(state)), .keep = keep, .done = done});
}

void SimServer::Stop() {
  stopping_ = true;
  COHORT_CHECK(lifecycle_.BeginStop(), "it stops twice");
  if (!lifecycle_.EndsWithResults()) {
    reactions_.on_closed();
    return WriteEnding();
  }
  // Writing takes a while, and workers are served until then.
  world_.shards.OnServer(world_.network.Delay(), [](SimServer& server) {
    server.Complete(server.WithWeights(*server.last_), server.last_,
                    [](SimServer& done, ShardNetwork::MaybeSnapshot whole) {
                      if (whole.ok()) {
                        return done.world_.checker.OnResults(*whole);
                      }
                      done.lifecycle_.FilesWritten(false);
                      done.Stopped();
                    });
  });
}

void SimServer::WriteEnding() {
  absl::StatusOr<RunState> state = core_->State();
  // A server without data shards has changed nothing, and without a model there
  // is nothing to save.
  if (lifecycle_.ending() != ServerLifecycle::Ending::kConclude ||
      !state.ok()) {
    return Stopped();
  }
  world_.checker.OnStateTaken();
  const SharedVersion keep = state->snapshot->pin;
  Save({.state = WithWeights(*std::move(state)),
        .keep = keep,
        .done = [](SimServer& server, const absl::StatusOr<RunState>& whole) {
          server.lifecycle_.FilesWritten(whole.ok());
          if (whole.ok()) server.saved_ = whole->snapshot->version;
          server.Stopped();
        }});
}

void SimServer::Stopped() {
  reactions_.on_stopped(!lifecycle_.ContinuesBecause().empty());
}

void SimServer::InstallAt(const Installation& installation) {
  const SharedLink& link = At(installation.place.index).link;
  world_.shards.ToShard(link, [link, installation](SimDataShard& to) {
    to.Install(link, installation);
  });
}

void SimServer::SendTo(int32_t shard, const ShardCommand& command) {
  const SharedLink& link = At(shard).link;
  world_.shards.ToShard(
      link, [link, command](SimDataShard& to) { to.Command(link, command); });
}

void SimServer::Arrived(int32_t shard, RemoteGradient gradient) {
  if (stopping_) return;
  const Rank rank = gradient.sender.rank;
  arrived_.Add(shard, std::move(gradient), world_.scheduler.now());
  Offer(rank);
}

void SimServer::Folded(FoldReport report) {
  // No data shard would learn of the commit.
  if (stopping_) return;
  PassOn(std::move(report), world_.scheduler.now());
}

void SimServer::Offer(Rank rank) {
  std::vector<ArrivedGradients::Refusal> refused;
  Handle([&](Effects& out) {
    arrived_.Offer(rank, *core_, world_.scheduler.now(), out, refused);
  });
  for (const ArrivedGradients::Refusal& refusal : refused) {
    if (!absl::IsAborted(refusal.status) &&
        !absl::IsDeadlineExceeded(refusal.status)) {
      world_.checker.Fail(absl::StrCat("refused: ", refusal.status.ToString()));
    }
    if (refusal.shard != 0) {
      SendTo(refusal.shard, command::Refuse{.ticket = refusal.ticket,
                                            .status = refusal.status});
      continue;
    }
    Refuse(refusal.ticket);
    const Waiting was = waiting_.extract(refusal.ticket).mapped();
    Accept(refusal.status, was.connection, StreamKind::kExchange, was.sender);
  }
}

void SimServer::Complete(std::shared_ptr<ModelSnapshot> whole,
                         SharedVersion keep, OnWhole done) {
  if (whole_ == nullptr || whole_->version != whole->version) {
    return Fetch(whole, 1, keep, done);
  }
  whole->weights = whole_->weights;
  whole->slots = whole_->slots;
  done(*this, std::move(whole));
}

void SimServer::Fetch(const std::shared_ptr<ModelSnapshot>& whole,
                      int32_t shard, const SharedVersion& keep,
                      const OnWhole& done) {
  if (shard == world_.shards.shards()) return done(*this, whole);
  if (const absl::Status usable = At(shard).connection.Usable(); !usable.ok()) {
    return done(*this, usable);
  }
  const int64_t number = next_fetch_++;
  fetches_[number] = {
      .shard = shard,
      .done = [=, this](const ShardNetwork::MaybeSnapshot& part) {
        if (absl::IsOutOfRange(part.status())) {
          world_.checker.Fail(absl::StrCat("a version of a checkpoint: ",
                                           part.status().ToString()));
        }
        if (!part.ok()) return done(*this, part.status());
        for (size_t p = 0; p < whole->weights.size(); ++p) {
          if ((*part)->weights[p] == nullptr) continue;
          whole->weights[p] = (*part)->weights[p];
          whole->slots[p] = (*part)->slots[p];
        }
        Fetch(whole, shard + 1, keep, done);
      }};
  world_.shards.Fetch(
      shard, whole->version,
      [number](SimServer& server, ShardNetwork::MaybeSnapshot part) {
        server.EndFetch(number, std::move(part));
      });
}

void SimServer::EndFetch(int64_t number, ShardNetwork::MaybeSnapshot part) {
  auto fetch = fetches_.extract(number);
  if (!fetch.empty()) fetch.mapped().done(std::move(part));
}

void SimServer::OnCheckpoint(const effect::WriteCheckpoint& e,
                             const SharedVersion& pin) {
  Write write{.state = e.state, .keep = pin, .done = nullptr};
  if (e.awaited) {
    // Nothing changes until then, but it may never be stored.
    world_.checker.OnCheckpointBegun(false);
    milestone_ = std::move(write);
    lifecycle_.MilestoneReached();
    return Proceed();
  }
  if (!writes_.empty()) return world_.checker.OnCheckpointBegun(false);
  Save(std::move(write));
}

void SimServer::Save(Write write) {
  writes_.push_back(std::move(write));
  if (writes_.size() == 1) WriteNext();
}

void SimServer::WriteNext() {
  world_.checker.OnCheckpointBegun(true);
  const Write& write = writes_.front();
  Complete(std::make_shared<ModelSnapshot>(*write.state.snapshot), write.keep,
           [](SimServer& server, ShardNetwork::MaybeSnapshot whole) {
             Write written = std::move(server.writes_.front());
             server.writes_.pop_front();
             absl::StatusOr<RunState> state = absl::UnavailableError("");
             if (whole.ok()) {
               written.state.snapshot = *std::move(whole);
               server.world_.checker.OnCheckpointWritten(written.state);
               state = std::move(written.state);
             }
             if (!server.writes_.empty()) server.WriteNext();
             if (written.done != nullptr) written.done(server, state);
           });
}

void SimServer::On(const effect::RunEnded& e) {
  if (e.version == nullptr) return;
  last_ = e.version;
  lifecycle_.RunEnded(e.outcome);
  reactions_.on_moment(Moment::kEnd);
  Proceed();
}

}  // namespace cohort::sim
