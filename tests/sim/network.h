#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/permutation.h"
#include "server/streams/streams.h"
#include "tests/sim/scheduler.h"

namespace cohort::sim {

class SimServer;
class SimWorker;

enum class StreamKind { kSession, kRegister, kExchange, kReduce };

struct DataStream;

// The streams of one connection from one process to one incarnation of the
// server. Each stream delivers in order; different streams are not ordered.
struct Connection {
  struct Stream {
    // The stream is lost: messages on their way do not arrive.
    bool cut = false;
    // The server has ended it.
    bool ended = false;
    Instant to_server;
    Instant to_worker;
  };

  SimWorker* worker = nullptr;
  // Later connections have higher numbers.
  int64_t number = 0;
  // 0 if no server was there.
  int32_t server_incarnation = 0;
  SessionId session;
  // The worker has closed it, or is dead.
  bool given_up = false;
  // The server has noticed the session's end, or ended it itself.
  bool session_over = false;
  std::array<Stream, 4> streams;
  // Those to the data shards from shard 1 on.
  std::vector<DataStream> data;

  DataStream& to_shard(int32_t index);
  Stream& stream(StreamKind kind) { return streams[static_cast<size_t>(kind)]; }
};

// Gradients to one process of a data shard, and weights from it.
struct DataStream {
  Connection::Stream stream;
  // 0 before the first message.
  int64_t process = 0;
  // The data shard's side; null before the first message has arrived.
  std::shared_ptr<ExchangeStream> end;
};

inline DataStream& Connection::to_shard(int32_t index) {
  return data[static_cast<size_t>(index) - 1];
}

using SharedConnection = std::shared_ptr<Connection>;

// Carries messages between the workers and the one server, with delays.
class Network {
 public:
  using ServerEvent = absl::AnyInvocable<void(SimServer&)>;
  using WorkerEvent = absl::AnyInvocable<void(SimWorker&)>;

  Network(Scheduler& scheduler, SplitMix64& random, absl::Duration delay_max)
      : scheduler_(scheduler), random_(random), delay_max_(delay_max) {}

  absl::Duration Delay();

  // Null if the server is gone; its connections break. `incarnation` counts
  // from 1.
  void SetServer(SimServer* server, int32_t incarnation);

  SharedConnection Connect(SimWorker& worker);
  void ToServer(const SharedConnection& connection, StreamKind kind,
                ServerEvent event);
  void ToWorker(const SharedConnection& connection, StreamKind kind,
                WorkerEvent event);
  // A unary call.
  template <typename Answer>
  void Call(const SharedConnection& connection,
            absl::AnyInvocable<Answer(SimServer&)> ask,
            absl::AnyInvocable<void(SimWorker&, Answer)> answer);

  // The network loses a stream. The worker notices soon; the server notices a
  // session's loss after `unnoticed`.
  void Break(const SharedConnection& connection, StreamKind kind,
             absl::Duration unnoticed);
  // The worker's side is closed; what was sent may still arrive.
  void CloseFromWorker(const SharedConnection& connection);
  // The machine is gone: the server gets no notice of it.
  void Vanish(const SharedConnection& connection);
  void EndFromServer(const SharedConnection& connection, StreamKind kind);

  // A process of a data shard is gone.
  void BreakData(int32_t shard, int64_t process);
  // The worker notices that a stream is over.
  void NotifyBroken(const SharedConnection& connection);
  // Runs an event in the worker, unless it has closed the connection.
  void Deliver(const SharedConnection& connection, WorkerEvent event);

  // Runs an event that this server process waits for, after a delay.
  void AfterFold(int32_t incarnation, ServerEvent event);

 private:
  SimServer* ServerOf(const Connection& connection) const {
    return connection.server_incarnation == incarnation_ ? server_ : nullptr;
  }
  void SessionEnds(const SharedConnection& connection, absl::Duration delay);

  Scheduler& scheduler_;
  SplitMix64& random_;
  const absl::Duration delay_max_;
  SimServer* server_ = nullptr;
  int32_t incarnation_ = 0;
  int64_t next_number_ = 1;
  std::vector<SharedConnection> connections_;
};

template <typename Answer>
void Network::Call(const SharedConnection& connection,
                   absl::AnyInvocable<Answer(SimServer&)> ask,
                   absl::AnyInvocable<void(SimWorker&, Answer)> answer) {
  scheduler_.After(Delay(), [this, connection, ask = std::move(ask),
                             answer = std::move(answer)]() mutable {
    SimServer* server = ServerOf(*connection);
    if (server == nullptr) return;
    Answer result = ask(*server);
    scheduler_.After(Delay(), [this, connection, answer = std::move(answer),
                               result = std::move(result)]() mutable {
      Deliver(connection,
              [answer = std::move(answer),
               result = std::move(result)](SimWorker& worker) mutable {
                answer(worker, std::move(result));
              });
    });
  });
}

}  // namespace cohort::sim
