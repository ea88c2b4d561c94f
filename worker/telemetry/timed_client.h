#pragma once

#include <string>
#include <vector>

#include "common/element_type.h"
#include "worker/client/client.h"
#include "worker/client/forwarding_client.h"
#include "worker/telemetry/step_phases.h"

namespace cohort {

// A client whose calls count in the phases of a step: sending gradients as
// kPush, a rendezvous as kRendezvous, waiting for the server as kWait.
// Thread safety: as the client's.
class TimedClient final : public ForwardingClient {
 public:
  // Both arguments must outlive it.
  TimedClient(Client& client, StepPhases& phases)
      : ForwardingClient(client), phases_(phases) {}

  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override;
  absl::StatusOr<Assignment> NextAssignment() override;
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override;
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override;
  absl::Status OpenPush(const PushOpening& opening) override;
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent_slices) override;
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override;
  absl::Status ReportEvaluation(const EvaluationSums& sums) override;
  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override;

 private:
  std::string NamesOf(absl::Span<const Contribution> calls) const;

  StepPhases& phases_;
  // How those of the current assignment are sent.
  ElementType gradients_ = ElementType::kFloat32;
  // Layer names, by number.
  std::vector<std::string> layers_;
};

}  // namespace cohort
