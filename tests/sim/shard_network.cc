#include "tests/sim/shard_network.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "tests/sim/sim_data_shard.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

SimDataShard* ShardNetwork::Shard(int32_t index, int64_t process) const {
  SimDataShard* shard = Shard(index);
  return shard != nullptr && shard->process() == process ? shard : nullptr;
}

absl::Duration ShardNetwork::Notice() {
  const absl::Duration soon = network_.Delay();
  return random_.Below(5) == 0 ? soon + absl::Seconds(3) * random_.Uniform()
                               : soon;
}

void ShardNetwork::SetServer(SimServer* server, int32_t generation) {
  server_ = server;
  generation_ = generation;
  for (const SharedLink& link : links_) {
    link->closed = true;
    link->cut = link->cut || random_.Below(2) == 0;
    TellShard(link, Notice());
  }
  links_.clear();
}

void ShardNetwork::SetShard(int32_t index, SimDataShard* shard) {
  const SimDataShard* before = Shard(index);
  shards_[static_cast<size_t>(index) - 1] = shard;
  if (before == nullptr) return;
  for (const SharedLink& link : links_) {
    if (link->process != before->process() || link->shard != index) continue;
    link->closed = true;
    link->cut = link->cut || random_.Below(2) == 0;
    TellServer(link, network_.Delay());
  }
  network_.BreakData(index, before->process());
}

SharedLink ShardNetwork::Connect(int32_t index) {
  const SimDataShard* shard = Shard(index);
  if (shard == nullptr) return nullptr;
  auto link = std::make_shared<ShardLink>(ShardLink{
      .shard = index, .generation = generation_, .process = shard->process()});
  links_.push_back(link);
  return link;
}

void ShardNetwork::ToShard(const SharedLink& link, ShardEvent event) {
  if (link->cut || link->closed) return;
  scheduler_.InOrder(link->to_shard, network_.Delay(),
                     [this, link, event = std::move(event)]() mutable {
                       SimDataShard* to = Shard(link->shard, link->process);
                       if (!link->cut && to != nullptr) event(*to);
                     });
}

void ShardNetwork::ToServer(const SharedLink& link, ServerEvent event) {
  if (link->cut || link->closed) return;
  scheduler_.InOrder(link->to_server, network_.Delay(),
                     [this, link, event = std::move(event)]() mutable {
                       SimServer* to = Server(link->generation);
                       if (!link->cut && to != nullptr) event(*to);
                     });
}

// After the messages that were sent before.
void ShardNetwork::TellServer(const SharedLink& link, absl::Duration delay) {
  scheduler_.InOrder(link->to_server, delay, [this, link] {
    std::erase(links_, link);
    SimServer* to = Server(link->generation);
    if (to != nullptr) to->OnLinkEnd(link);
  });
}

void ShardNetwork::TellShard(const SharedLink& link, absl::Duration delay) {
  scheduler_.InOrder(link->to_shard, delay, [this, link] {
    SimDataShard* to = Shard(link->shard, link->process);
    if (to != nullptr) to->OnLinkEnd(link);
  });
}

void ShardNetwork::EndFromShard(const SharedLink& link) {
  if (link->closed) return;
  link->closed = true;
  TellServer(link, network_.Delay());
}

void ShardNetwork::EndFromServer(const SharedLink& link) {
  if (link->closed) return;
  link->closed = true;
  link->cut = true;
  TellServer(link, network_.Delay());
  TellShard(link, network_.Delay());
}

void ShardNetwork::Break(int32_t index, absl::Duration unnoticed) {
  for (const SharedLink& link : links_) {
    if (link->shard != index || link->cut) continue;
    link->cut = true;
    TellServer(link, Notice());
    TellShard(link, unnoticed);
  }
}

void ShardNetwork::OnServer(absl::Duration delay, ServerEvent event) {
  scheduler_.After(delay, [this, generation = generation_,
                           event = std::move(event)]() mutable {
    SimServer* to = Server(generation);
    if (to != nullptr) event(*to);
  });
}

void ShardNetwork::OnShard(int32_t index, int64_t process, absl::Duration delay,
                           ShardEvent event) {
  scheduler_.After(delay,
                   [this, index, process, event = std::move(event)]() mutable {
                     SimDataShard* to = Shard(index, process);
                     if (to != nullptr) event(*to);
                   });
}

void ShardNetwork::Fetch(
    int32_t index, Version version,
    absl::AnyInvocable<void(SimServer&, MaybeSnapshot)> answer) {
  const int32_t generation = generation_;
  auto done = [this, generation,
               answer = std::move(answer)](MaybeSnapshot snapshot) mutable {
    scheduler_.After(network_.Delay(),
                     [this, generation, answer = std::move(answer),
                      snapshot = std::move(snapshot)]() mutable {
                       SimServer* to = Server(generation);
                       if (to != nullptr) answer(*to, std::move(snapshot));
                     });
  };
  scheduler_.After(network_.Delay(), [this, index, generation, version,
                                      done = std::move(done)]() mutable {
    SimDataShard* to = Shard(index);
    if (to == nullptr) return done(absl::UnavailableError("not there"));
    to->Fetch(generation, version, std::move(done));
  });
}

void ShardNetwork::ToShard(const SharedConnection& connection, int32_t index,
                           ShardEvent event) {
  DataStream& data = connection->to_shard(index);
  if (data.stream.cut || connection->given_up) return;
  if (data.process == 0 && Shard(index) != nullptr) {
    data.process = Shard(index)->process();
  }
  if (data.process == 0) return network_.NotifyBroken(connection);
  scheduler_.InOrder(
      data.stream.to_server, network_.Delay(),
      [this, connection, index, event = std::move(event)]() mutable {
        const DataStream& data = connection->to_shard(index);
        SimDataShard* to = Shard(index, data.process);
        if (!data.stream.cut && !data.stream.ended && to != nullptr) event(*to);
      });
}

void ShardNetwork::ToWorker(const SharedConnection& connection, int32_t index,
                            WorkerEvent event) {
  Connection::Stream& stream = connection->to_shard(index).stream;
  if (stream.cut || stream.ended) return;
  scheduler_.InOrder(
      stream.to_worker, network_.Delay(),
      [this, connection, index, event = std::move(event)]() mutable {
        if (connection->to_shard(index).stream.cut) return;
        network_.Deliver(connection, std::move(event));
      });
}

void ShardNetwork::EndFromShard(const SharedConnection& connection,
                                int32_t index) {
  Connection::Stream& stream = connection->to_shard(index).stream;
  if (stream.ended) return;
  ToWorker(connection, index, [](SimWorker& worker) { worker.OnBroken(); });
  stream.ended = true;
}

void ShardNetwork::Break(const SharedConnection& connection, int32_t index) {
  connection->to_shard(index).stream.cut = true;
  network_.NotifyBroken(connection);
}

void ShardNetwork::CloseFromWorker(const SharedConnection& connection) {
  for (size_t i = 0; i < connection->data.size(); ++i) {
    DataStream& data = connection->data[i];
    if (data.process == 0 || data.stream.cut) continue;
    data.stream.to_server =
        std::max(scheduler_.now() + network_.Delay(), data.stream.to_server);
    OnShard(static_cast<int32_t>(i) + 1, data.process,
            data.stream.to_server - scheduler_.now(),
            [connection](SimDataShard& shard) {
              shard.OnWorkerClosed(connection);
            });
  }
}

void ShardNetwork::Read(
    const SharedConnection& connection, int32_t index, Version version,
    absl::AnyInvocable<void(SimWorker&, MaybeSnapshot)> answer) {
  auto done = [this, connection,
               answer = std::move(answer)](MaybeSnapshot snapshot) mutable {
    scheduler_.After(
        network_.Delay(), [this, connection, answer = std::move(answer),
                           snapshot = std::move(snapshot)]() mutable {
          network_.Deliver(connection, [answer = std::move(answer),
                                        snapshot = std::move(snapshot)](
                                           SimWorker& worker) mutable {
            answer(worker, std::move(snapshot));
          });
        });
  };
  scheduler_.After(network_.Delay(), [this, connection, index, version,
                                      done = std::move(done)]() mutable {
    SimDataShard* to = Shard(index);
    if (to == nullptr) return network_.NotifyBroken(connection);
    to->Read(connection->server_incarnation, version, std::move(done));
  });
}

}  // namespace cohort::sim
