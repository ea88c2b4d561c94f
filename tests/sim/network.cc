#include "tests/sim/network.h"

#include <algorithm>

#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

absl::Duration Network::Delay() {
  // A few messages are much later than the rest.
  const double stretch = random_.Below(64) == 0 ? 8 : 1;
  return delay_max_ * (random_.Uniform() * stretch);
}

void Network::SetServer(SimServer* server, int32_t incarnation) {
  server_ = server;
  incarnation_ = incarnation;
  for (const SharedConnection& connection : connections_) {
    for (Connection::Stream& stream : connection->streams) stream.cut = true;
    NotifyBroken(connection);
  }
  connections_.clear();
}

SharedConnection Network::Connect(SimWorker& worker) {
  auto connection = std::make_shared<Connection>();
  connection->worker = &worker;
  connection->number = next_number_++;
  connection->session = SessionId(connection->number);
  if (server_ == nullptr) {
    NotifyBroken(connection);
    return connection;
  }
  connection->server_incarnation = incarnation_;
  connections_.push_back(connection);
  return connection;
}

void Network::ToServer(const SharedConnection& connection, StreamKind kind,
                       ServerEvent event) {
  Connection::Stream& stream = connection->stream(kind);
  if (stream.cut || connection->given_up) return;
  scheduler_.InOrder(
      stream.to_server, Delay(),
      [this, connection, kind, event = std::move(event)]() mutable {
        const Connection::Stream& stream = connection->stream(kind);
        SimServer* server = ServerOf(*connection);
        if (stream.cut || stream.ended || server == nullptr) return;
        event(*server);
      });
}

void Network::Deliver(const SharedConnection& connection, WorkerEvent event) {
  connection->worker->Do([connection, event = std::move(event)]() mutable {
    if (connection->given_up) return;
    event(*connection->worker);
  });
}

void Network::ToWorker(const SharedConnection& connection, StreamKind kind,
                       WorkerEvent event) {
  Connection::Stream& stream = connection->stream(kind);
  if (stream.cut || stream.ended) return;
  scheduler_.InOrder(
      stream.to_worker, Delay(),
      [this, connection, kind, event = std::move(event)]() mutable {
        if (connection->stream(kind).cut) return;
        Deliver(connection, std::move(event));
      });
}

void Network::NotifyBroken(const SharedConnection& connection) {
  scheduler_.After(Delay(), [this, connection] {
    Deliver(connection, [](SimWorker& worker) { worker.OnBroken(); });
  });
}

void Network::SessionEnds(const SharedConnection& connection,
                          absl::Duration delay) {
  scheduler_.After(delay, [this, connection] {
    SimServer* server = ServerOf(*connection);
    if (server == nullptr || connection->session_over) return;
    connection->session_over = true;
    server->SessionBroken(connection);
  });
}

void Network::Break(const SharedConnection& connection, StreamKind kind,
                    absl::Duration unnoticed) {
  connection->stream(kind).cut = true;
  NotifyBroken(connection);
  if (kind == StreamKind::kSession) SessionEnds(connection, unnoticed);
}

void Network::CloseFromWorker(const SharedConnection& connection) {
  connection->given_up = true;
  Connection::Stream& session = connection->stream(StreamKind::kSession);
  // Break decides when the server notices a cut session.
  if (session.cut) return;
  session.to_server = std::max(scheduler_.now() + Delay(), session.to_server);
  SessionEnds(connection, session.to_server - scheduler_.now());
}

void Network::Vanish(const SharedConnection& connection) {
  connection->given_up = true;
  for (Connection::Stream& stream : connection->streams) stream.cut = true;
  for (DataStream& data : connection->data) data.stream.cut = true;
}

void Network::BreakData(int32_t shard, int64_t process) {
  for (const SharedConnection& connection : connections_) {
    DataStream& data = connection->to_shard(shard);
    if (data.process != process) continue;
    data.stream.cut = true;
    NotifyBroken(connection);
  }
}

void Network::EndFromServer(const SharedConnection& connection,
                            StreamKind kind) {
  Connection::Stream& stream = connection->stream(kind);
  if (stream.ended) return;
  ToWorker(connection, kind, [](SimWorker& worker) { worker.OnBroken(); });
  stream.ended = true;
  if (kind == StreamKind::kSession) connection->session_over = true;
}

void Network::AfterFold(int32_t incarnation, ServerEvent event) {
  scheduler_.After(Delay(),
                   [this, incarnation, event = std::move(event)]() mutable {
                     if (server_ != nullptr && incarnation_ == incarnation)
                       event(*server_);
                   });
}

}  // namespace cohort::sim
