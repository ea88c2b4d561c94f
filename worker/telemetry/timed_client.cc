#include "worker/telemetry/timed_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {

absl::StatusOr<Registration> TimedClient::Register(
    const ModelLayout& layout, const RunPlan& plan,
    absl::Span<const absl::Span<const float>> values,
    absl::Span<const LayerStatistics> statistics) {
  layers_.clear();
  for (const BatchNormSpec& layer : layout.batch_norms) {
    layers_.push_back(layer.name);
  }
  return next().Register(layout, plan, values, statistics);
}

absl::StatusOr<Assignment> TimedClient::NextAssignment() {
  StepPhases::Scope wait(phases_, StepPhase::kWait);
  if (phases_.traced()) wait.AddFact("for", "assignment");
  absl::StatusOr<Assignment> assignment = next().NextAssignment();
  if (assignment.ok()) gradients_ = assignment->gradients;
  return assignment;
}

absl::StatusOr<PulledVersion> TimedClient::Pull(const PullOptions& options) {
  StepPhases::Scope wait(phases_, StepPhase::kWait);
  if (phases_.traced()) wait.AddFact("for", "pull");
  return next().Pull(options);
}

std::string TimedClient::NamesOf(absl::Span<const Contribution> calls) const {
  return absl::StrJoin(
      calls, ", ", [this](std::string* out, const Contribution& of) {
        const CallPlace& place = of.place;
        const auto layer = static_cast<size_t>(place.layer);
        absl::StrAppend(out, place.layer < 0 || layer >= layers_.size()
                                 ? place.site
                                 : layers_[layer]);
      });
}

absl::StatusOr<std::vector<Moments>> TimedClient::Reduce(
    const ReducePass& pass, absl::Span<const Contribution> local) {
  StepPhases::Scope rendezvous(phases_, StepPhase::kRendezvous);
  if (phases_.traced() && !local.empty()) {
    rendezvous.AddFact("layer", NamesOf(local));
    const CallPlace& place = local.front().place;
    const bool forward = place.phase == ReducePhase::kForward;
    rendezvous.AddFact("phase", forward ? "forward" : "backward");
    rendezvous.AddFact("call", int64_t{place.call});
  }
  return next().Reduce(pass, local);
}

absl::Status TimedClient::OpenPush(const PushOpening& opening) {
  const StepPhases::Scope push(phases_, StepPhase::kPush);
  return next().OpenPush(opening);
}

absl::Status TimedClient::SendGradient(
    int32_t partition, ByteRope gradient,
    absl::Span<const int32_t> absent_slices) {
  StepPhases::Scope push(phases_, StepPhase::kPush);
  if (phases_.traced()) {
    push.AddFact("partition", int64_t{partition});
    push.AddFact("bytes", gradient.size_bytes() /
                              BytesOf(ElementType::kFloat32) *
                              BytesOf(gradients_));
  }
  return next().SendGradient(partition, std::move(gradient), absent_slices);
}

absl::StatusOr<PushResult> TimedClient::ClosePush(const PushClosing& closing) {
  StepPhases::Scope wait(phases_, StepPhase::kWait);
  if (phases_.traced()) wait.AddFact("for", "verdict");
  return next().ClosePush(closing);
}

absl::Status TimedClient::ReportEvaluation(const EvaluationSums& sums) {
  StepPhases::Scope wait(phases_, StepPhase::kWait);
  if (phases_.traced()) wait.AddFact("for", "report");
  return next().ReportEvaluation(sums);
}

absl::Status TimedClient::ReportMoments(absl::Span<const CallMoments> calls) {
  StepPhases::Scope wait(phases_, StepPhase::kWait);
  if (phases_.traced()) wait.AddFact("for", "report");
  return next().ReportMoments(calls);
}

}  // namespace cohort
