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
    SendAll(commands_->Install(restored_model_, restored_snapshot_,
                               core_->Policy(world_.scheduler.now()).settings));
  }
  restored_model_ = nullptr;
  restored_snapshot_ = nullptr;
  started_ = true;
  reactions_.on_started();
  if (shard_lost_) reactions_.on_shard_lost();
}

void SimServer::SendTo(int32_t shard, const ShardCommand& command) {
  const SharedLink& link = links_[static_cast<size_t>(shard) - 1];
  world_.shards.ToShard(
      link, [link, command](SimDataShard& to) { to.Command(link, command); });
}

void SimServer::RemoteArrived(int32_t shard, RemoteGradient gradient) {
  const Rank rank = gradient.sender.rank;
  remote_.Add(shard, std::move(gradient), world_.scheduler.now());
  Offer(rank);
}

void SimServer::RemoteFolded(FoldReport report) {
  PassOn(std::move(report), world_.scheduler.now());
}

void SimServer::Offer(Rank rank) {
  std::vector<RemoteGradients::Refusal> refused;
  Handle([&](Effects& out) {
    remote_.Offer(rank, *core_, world_.scheduler.now(), out, refused);
  });
  for (const RemoteGradients::Refusal& refusal : refused) {
    if (!absl::IsAborted(refusal.status) &&
        !absl::IsDeadlineExceeded(refusal.status)) {
      world_.checker.Fail(absl::StrCat("refused: ", refusal.status.ToString()));
    }
    SendTo(refusal.shard, shard_command::Refuse{.ticket = refusal.ticket,
                                                .status = refusal.status});
  }
}

void SimServer::Complete(std::shared_ptr<ModelSnapshot> whole, int32_t shard,
                         SharedSnapshot keep, OnWhole done) {
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

void SimServer::On(const effect::WriteCheckpoint& e) {
  if (!IsShared()) return;
  if (e.awaited && writes_checkpoint_) {
    awaited_ = e;
    return;
  }
  world_.checker.OnCheckpointBegun(!writes_checkpoint_);
  if (std::exchange(writes_checkpoint_, true)) return;
  Complete(std::make_shared<ModelSnapshot>(*e.state.snapshot), 1,
           e.state.snapshot,
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
  if (awaited_.has_value()) On(*std::exchange(awaited_, std::nullopt));
}

void SimServer::On(const effect::RunEnded& e) {
  if (!IsShared() || e.snapshot == nullptr) return;
  Complete(std::make_shared<ModelSnapshot>(*e.snapshot), 1, e.snapshot,
           [](SimServer& server, ShardNetwork::MaybeSnapshot whole) {
             if (whole.ok()) server.world_.checker.OnResults(*whole);
           });
}

}  // namespace cohort::sim
