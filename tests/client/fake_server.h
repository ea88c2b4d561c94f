#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/v1/membership.grpc.pb.h"
#include "cohort/v1/moments.grpc.pb.h"
#include "cohort/v1/parameters.grpc.pb.h"
#include "common/assignment.h"
#include "common/model_layout.h"
#include "common/mutex.h"
#include "tests/fakes/sealed.h"
#include "worker/client/client.h"

namespace cohort {

// A server on a free port of this machine that follows the hooks of a test.
// Hooks run on gRPC's threads; set them before the client calls.
class FakeServer {
 public:
  // A stream. Messages that have no checksum get one.
  template <typename Stream, typename Reply>
  struct Io {
    Stream& stream;

    template <typename Request>
    bool Read(Request* request) {
      return stream.Read(request);
    }
    bool Write(const Reply& reply) { return stream.Write(Sealed(reply)); }
  };
  template <typename Reply, typename Request>
  using Duplex = Io<grpc::ServerReaderWriter<Reply, Request>, Reply>;
  using SessionIo = Duplex<v1::SessionReply, v1::SessionRequest>;
  using ExchangeIo = Duplex<v1::ExchangeReply, v1::ExchangeRequest>;
  using RegisterIo = Duplex<v1::RegisterReply, v1::RegisterRequest>;
  using ReduceIo = Duplex<v1::ReduceReply, v1::ReduceRequest>;
  using PullIo = Io<grpc::ServerWriter<v1::PullReply>, v1::PullReply>;

  FakeServer();
  ~FakeServer();

  const std::string& address() const { return address_; }
  // Options of a client that joins here as rank 2.
  ClientOptions Options() const;
  // A reply that admits `join` to run "run-1", with the incarnation that it
  // requests or else a new one: 1, 2, ...
  v1::JoinReply Admit(const v1::Join& join);

  // Sends a notice on the open session; there must be one.
  void Tell(const Assignment& assignment);
  void TellAborted(int64_t step, int32_t attempt);
  // Ends the open session with `status` at its next heartbeat.
  void EndSession(const absl::Status& status);
  // Stops listening and cancels all calls; the address stays known.
  void Shutdown();

  // Everything received on sessions, in order.
  std::vector<v1::SessionRequest> received();
  std::vector<v1::Join> joins();
  // The address that each registration came from: one a connection.
  std::vector<std::string> register_peers() {
    MutexLock lock(mu_);
    return register_peers_;
  }
  // Blocks until the session has received `count` messages that `matches`
  // accepts.
  void AwaitReceived(
      const std::function<bool(const v1::SessionRequest&)>& matches);

  // Answers a Join; by default Admit.
  std::function<absl::StatusOr<v1::JoinReply>(const v1::Join&)> on_join;
  // Called once a session is open, before anything else is sent on it.
  std::function<void(int session)> on_open;
  std::function<grpc::Status(ExchangeIo&)> on_exchange;
  std::function<grpc::Status(RegisterIo&)> on_register;
  std::function<grpc::Status(ReduceIo&)> on_reduce;
  std::function<grpc::Status(const v1::PullRequest&, PullIo&)> on_pull;
  std::function<absl::StatusOr<Assignment>(const v1::ReportRequest&)> on_report;
  // If set, heartbeats that request a clock are answered with one this far
  // ahead.
  std::optional<absl::Duration> echo_ahead;

 private:
  struct Services;

  grpc::Status Session(SessionIo& io);

  std::string address_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;

  Mutex mu_;
  CondVar changed_;
  int sessions_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t incarnations_ ABSL_GUARDED_BY(mu_) = 0;
  SessionIo* open_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::SessionRequest> received_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> register_peers_ ABSL_GUARDED_BY(mu_);
};

// A client that has joined; fails the test if it cannot.
std::unique_ptr<Client> JoinedClient(const ClientOptions& options);

// Two trainable parameters of two elements and a frozen one of one, each in its
// partition, and one batch-norm layer of two channels.
ModelLayout TestLayout();
std::vector<Partition> TestPartitions();

// Answers every registration with TestPartitions, and requests no values.
grpc::Status RegisterWithoutValues(FakeServer::RegisterIo& io);
// Registers TestLayout with the values {1, 2}, {3} and {4, 5}.
absl::StatusOr<Registration> TryRegister(
    Client& client, const std::vector<LayerStatistics>& statistics = {});
// The same; fails the test if it cannot.
void RegisterTestModel(Client& client);

// A pull of the test model receives these: the header of `version`, with the
// initial statistics, and a partition.
v1::PullReply HeaderReply(int64_t version);
v1::PullReply PartitionReply(int32_t partition,
                             const std::vector<float>& values);

// Reads a whole push; false if the stream ended first.
bool ReadPush(FakeServer::ExchangeIo& io,
              std::vector<v1::ExchangeRequest>* push);
// Waits for the client to end the stream.
grpc::Status Drain(FakeServer::ExchangeIo& io);
// Step `step` as assignment `sequence`, with rank 2 as its only member.
Assignment TrainAssignment(int64_t sequence, int32_t attempt, int64_t step);

// The bytes of little-endian floats.
std::string FloatBytes(const std::vector<float>& values);

}  // namespace cohort
