// A simulated server with data shards in other processes: what the product's
// Shard and Server do for them.

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/sim_data_shard.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

void SimServer::Start() { AttachNext(); }

// One after the other, and no worker is let in before all are there.
void SimServer::AttachNext() {
  const auto next = static_cast<int32_t>(links_.size()) + 1;
  if (next == world_.shards.shards()) return Begin();
  SharedLink link = world_.shards.Connect(next);
  if (link == nullptr) {
    return world_.shards.OnServer(
        absl::Milliseconds(10) + world_.network.Delay(),
        [](SimServer& server) { server.AttachNext(); });
  }
  links_.push_back(link);
  world_.shards.ToShard(link,
                        [link](SimDataShard& shard) { shard.Attach(link); });
}

void SimServer::OnAttached(const SharedLink& /*link*/) { AttachNext(); }

void SimServer::OnLinkEnd(const SharedLink& link) {
  const bool attached = started_ || link != links_.back();
  if (!attached) {
    links_.pop_back();
    return AttachNext();
  }
  if (std::exchange(shard_lost_, true)) return;
  // Only then is it waited for.
  if (started_) reactions_.on_shard_lost();
}

void SimServer::Begin() {
  if (restored_model_ != nullptr) {
    for (int32_t i = 1; i < world_.shards.shards(); ++i) {
      Install(i, restored_model_, restored_snapshot_);
    }
  }
  restored_model_ = nullptr;
  restored_snapshot_ = nullptr;
  started_ = true;
  reactions_.on_started();
  if (shard_lost_) reactions_.on_shard_lost();
}

void SimServer::InstallAt(const Installation& installation) {
  const SharedLink& link =
      links_[static_cast<size_t>(installation.place.index) - 1];
  world_.shards.ToShard(link, [link, installation](SimDataShard& to) {
    to.Install(link, installation);
  });
}

void SimServer::SendTo(int32_t shard, const ShardCommand& command) {
  const SharedLink& link = links_[static_cast<size_t>(shard) - 1];
  world_.shards.ToShard(
      link, [link, command](SimDataShard& to) { to.Command(link, command); });
}

void SimServer::Arrived(int32_t shard, RemoteGradient gradient) {
  const Rank rank = gradient.sender.rank;
  arrived_.Add(shard, std::move(gradient), world_.scheduler.now());
  Offer(rank);
}

void SimServer::Folded(FoldReport report) {
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

void SimServer::Complete(std::shared_ptr<ModelSnapshot> whole, int32_t shard,
                         SharedVersion keep, OnWhole done) {
  if (shard == world_.shards.shards()) return done(*this, std::move(whole));
  const Version version = whole->version;
  world_.shards.Fetch(
      shard, version,
      [whole = std::move(whole), shard, keep = std::move(keep),
       done = std::move(done)](SimServer& server,
                               ShardNetwork::MaybeSnapshot part) mutable {
        if (absl::IsOutOfRange(part.status())) {
          server.world_.checker.Fail(absl::StrCat("a version of a checkpoint: ",
                                                  part.status().ToString()));
        }
        if (!part.ok()) return done(server, part.status());
        for (size_t p = 0; p < whole->weights.size(); ++p) {
          if ((*part)->weights[p] == nullptr) continue;
          whole->weights[p] = (*part)->weights[p];
          whole->slots[p] = (*part)->slots[p];
        }
        server.Complete(std::move(whole), shard + 1, std::move(keep),
                        std::move(done));
      });
}

void SimServer::OnCheckpoint(const effect::WriteCheckpoint& e,
                             const SharedVersion& pin) {
  if (e.awaited && writes_checkpoint_) {
    awaited_ = {e, pin};
    return;
  }
  world_.checker.OnCheckpointBegun(!writes_checkpoint_);
  if (std::exchange(writes_checkpoint_, true)) return;
  Complete(std::make_shared<ModelSnapshot>(*e.state.snapshot), 1, pin,
           [write = e](SimServer& server,
                       ShardNetwork::MaybeSnapshot whole) mutable {
             // A shard is gone, and this server is about to end.
             if (!whole.ok()) return;
             write.state.snapshot = *std::move(whole);
             server.OnWritten(std::move(write));
           });
}

void SimServer::OnWritten(effect::WriteCheckpoint write) {
  writes_checkpoint_ = false;
  world_.checker.OnCheckpointWritten(std::move(write.state));
  if (write.awaited) {
    Handle([&](Effects& out) {
      core_->CheckpointStored(world_.scheduler.now(), out);
    });
  }
  if (!awaited_.has_value()) return;
  const auto [next, pin] = *std::exchange(awaited_, std::nullopt);
  OnCheckpoint(next, pin);
}

void SimServer::On(const effect::RunEnded& e) {
  if (e.version == nullptr) return;
  Complete(WithWeights(*e.version), 1, e.version,
           [](SimServer& server, ShardNetwork::MaybeSnapshot whole) {
             if (whole.ok()) server.world_.checker.OnResults(*whole);
           });
}

}  // namespace cohort::sim
