#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/v1/membership.grpc.pb.h"
#include "common/clock.h"
#include "common/ops/closed_connection.h"
#include "common/periodic_task.h"
#include "common/wire/shared_security.h"
#include "worker/client/client.h"
#include "worker/client/kept_weights.h"
#include "worker/client/link.h"
#include "worker/client/local_link.h"
#include "worker/client/push_stream.h"
#include "worker/client/reduce_client.h"
#include "worker/client/session_client.h"
#include "worker/client/shard_channels.h"
#include "worker/client/sleeper.h"
#include "worker/client/state_call.h"
#include "worker/client/transfer.h"

namespace cohort {

// The client over gRPC: three connections (control, rendezvous, bulk), so that
// nothing small waits behind gradients. Each call is tried once; RetryingClient
// repeats those that may be repeated.
//
// The end of any stream breaks the whole connection: calls in progress and
// later ones return Unavailable or Aborted. Join then reconnects, as the same
// incarnation if the server still knows it. If it does not, Join returns
// Aborted, and the next Join starts a new incarnation of the same rank, which
// registers again.
class GrpcClient final : public Client {
 public:
  // Plaintext if `security` is null.
  explicit GrpcClient(const ClientOptions& options,
                      SharedSecurity security = nullptr);
  ~GrpcClient() override;

  absl::StatusOr<Membership> Join() override;
  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override;
  Incarnation incarnation() const override;
  absl::StatusOr<Assignment> NextAssignment() override;
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override;
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override;
  absl::Status OpenPush(const PushOpening& opening) override;
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent_slices) override;
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() override;
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override;
  absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& key, const PushClosing& closing) override;
  absl::StatusOr<bool> HoldState(const StateHolding& holding) override;
  absl::Status GiveState(Version version, absl::string_view bytes) override;
  absl::StatusOr<TakenState> TakeState() override;
  absl::Status ReportEvaluation(const EvaluationSums& sums) override;
  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override;
  void Leave(const Departure& departure) override;
  void RequestStop() override;
  void SetObserver(std::function<void(const std::string&)> observer) override;

  // For pauses between two calls, which RequestStop ends. Both live as long as
  // the client.
  const Clock& clock() const { return clock_; }
  Sleeper& sleeper() { return link_; }

 private:
  // All streams of one session; destroyed from the last to the first.
  struct Connection {
    Sender sender;
    // Addresses of the data shards from shard 1 on.
    std::vector<std::string> data_shards;
    std::unique_ptr<SessionClient> session;
    std::unique_ptr<PeriodicTask> heartbeat;
    // Empty if the server has nothing for workers of its host.
    v1::LocalOffer local_offer;
    bool tried_locally = false;
    // Null if no memory is shared.
    std::unique_ptr<LocalLink> local;
    // Opened on first use.
    std::unique_ptr<ReduceClient> reduce;
    std::unique_ptr<PushStream> push;
  };

  // The data that a new incarnation of this rank registers again.
  struct Registered {
    ModelLayout layout;
    RunPlan plan;
    Registration registration;
    // The incarnation that has registered.
    Incarnation incarnation;
  };

  // Joins, and registers again if this is a new incarnation.
  absl::Status TryConnect(Instant deadline);
  absl::Status Explained(const absl::Status& failure);
  absl::Status CheckOwnCertificate() const;
  // Ends the current assignment, which must be of `kind`.
  absl::Status Report(AssignmentKind kind, v1::ReportRequest& request);
  absl::Status RegisterAgain(Instant deadline);
  void Disconnect();
  // Connects the other channels to the process that answered the join. Its name
  // may have other addresses, or may not resolve a second time.
  void FollowPeer(const std::string& peer);
  v1::Join MakeJoin() const;
  // Errors: NotFound if this is not the run joined before, FailedPrecondition
  //   if it is not the rank.
  absl::Status CheckSameRun(const Membership& membership) const;

  // Errors: the reason why no call can be made now.
  absl::Status Usable();
  // Takes a shorter way to the server if both want and can. Call before the
  // first stream on another connection than the session's.
  // Errors: FailedPrecondition if a way must be taken and cannot.
  absl::Status ConnectLocally();
  // The stream of the push in progress; opened if necessary.
  absl::StatusOr<PushStream*> OpenedPushStream();
  // Whether the server may send changes of weights in the present assignment.
  bool KeepsWeights() const;
  // The next work, wait or end.
  absl::StatusOr<Assignment> AwaitNotice(Instant deadline);
  BulkTarget MakeTarget(Instant deadline);
  StateCalls MakeStateCalls();
  // `end` of a call of KeptState, which may be the end of the connection.
  template <typename Result>
  Result NoteStateCall(Result end);
  // Returns a function that tells the observer what a registration waits for,
  // and returns the new deadline.
  std::function<Instant(const Assignment&)> WaitTeller();
  Instant Patience() const;
  void Observe(const std::string& sentence);

  // Fixed after construction.
  const ClientOptions options_;
  const SharedSecurity security_;
  const SteadyClock clock_;
  const std::shared_ptr<grpc::Channel> control_;
  const std::unique_ptr<v1::Membership::Stub> membership_stub_;

  // Synchronises itself.
  mutable Link link_;

  // Used by the driving thread only.
  // The server that the next two are connected to; they are null before the
  // first join.
  std::string peer_;
  std::shared_ptr<grpc::Channel> moments_;
  std::shared_ptr<grpc::Channel> bulk_;
  // To the data shards.
  ShardChannels shards_;
  std::function<void(const std::string&)> observer_;
  std::optional<Membership> membership_;
  // The incarnation to return to; none after it was fenced.
  Incarnation return_to_;
  std::optional<Registered> registered_;
  std::optional<Assignment> current_;
  // Updates of its push whose weights have arrived.
  int32_t updates_ = 0;
  KeptWeights kept_;
  // When the current series of tries to join began; absent while connected. A
  // single try ends with the patience of the whole series, even if it began
  // later.
  std::optional<Instant> joining_since_;
  // The result of the last look at a server that ends each connection.
  std::optional<Instant> looked_at_;
  ClosedBecause closed_because_ = ClosedBecause::kUnknown;
  // The sentence that the hooks received last.
  std::string exchange_path_;
  // An error if the run cannot continue.
  absl::Status final_;
  bool left_ = false;
  std::unique_ptr<Connection> connection_;
};

}  // namespace cohort
