#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "worker/client/backoff.h"
#include "worker/client/client.h"
#include "worker/client/forwarding_client.h"
#include "worker/client/sleeper.h"

namespace cohort {

// Repeats calls of a client that tries each of them once:
//
//   Join            until server_timeout, while the server is away or the rank
//                   is taken
//   Register        likewise; joins again before each further try
//   NextAssignment  joins again whenever the connection or incarnation is lost,
//                   after growing pauses if nothing is completed in between;
//                   ten times at most if all that was sent in between, or all
//                   answers, were damaged on their way
//   Pull            five times at most, if the reply was damaged on its way
//
// Every other call is tried once: it is part of an assignment, and a failure
// makes the assignment void.
//
// Thread safety: as Client.
class RetryingClient final : public ForwardingClient {
 public:
  // `once` implements Client except that none of its calls is repeated, and
  // that Join, called again, returns to the run after the connection was lost.
  // `clock` and `sleeper` must outlive all calls; they may belong to `once`.
  // RequestStop of `once` must end a pause of `sleeper`.
  RetryingClient(std::unique_ptr<Client> once, const ClientOptions& options,
                 const Clock& clock, Sleeper& sleeper);

  absl::StatusOr<Membership> Join() override;
  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override;
  absl::StatusOr<Assignment> NextAssignment() override;
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override;
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override;
  absl::Status ReportEvaluation(const EvaluationSums& sums) override;
  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override;
  void SetObserver(std::function<void(const std::string&)> observer) override;

 private:
  // Joins, for the first time or again; retries until server_timeout.
  absl::StatusOr<Membership> Connect();
  // After a connection was lost: pauses unless it is the first time since the
  // last completed assignment. Errors: DataLoss: it was damage too often; those
  // of Sleeper::Pause.
  absl::Status PaceReturn(const absl::Status& lost);
  // An assignment was completed if `done` is OK.
  void NoteDone(const absl::Status& done);
  void Observe(const std::string& sentence);
  void TellRetry(absl::string_view method);
  void TellObstacle(const absl::Status& status);

  // Fixed after construction.
  const std::unique_ptr<Client> once_;
  const ClientOptions options_;
  const Clock& clock_;
  Sleeper& sleeper_;

  // Used by the driving thread only.
  std::function<void(const std::string&)> observer_;
  // Whether `once_` has reported a wait since this was last cleared.
  bool heard_wait_ = false;
  bool joined_ = false;
  // Connections that were lost since the last completed assignment, and those
  // of them that were lost by damage.
  int losses_ = 0;
  int damages_ = 0;
  Backoff loss_backoff_;
  // When the last obstacle was reported.
  std::optional<Instant> obstacle_told_at_;
  // Shared by all connections: a worker whose server restarts repeatedly draws
  // different pauses each time.
  Backoff join_backoff_;
};

}  // namespace cohort
