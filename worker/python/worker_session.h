#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "worker/client/client.h"
#include "worker/client/held_version.h"
#include "worker/client/partition_schedule.h"
#include "worker/telemetry/observed_worker.h"
#include "worker/telemetry/step_phases.h"
#include "worker/telemetry/timed_client.h"

namespace cohort {

// A worker whose model lives in another language's tensors: everything of
// Trainer and StepRunner that is not LibTorch's. The caller computes; this
// tells it what, sends what it computed, and writes new weights into the
// memory of its parameters.
//
// A step that becomes void (a rank was lost, the connection broke) is not
// noticed by the computation: rendezvous are answered with the local moments
// from then on, gradients are discarded, and CloseStep returns the reason.
//
// Thread safety: one thread drives it. RequestStop is safe from any thread.
class WorkerSession {
 public:
  struct Options {
    ClientOptions client;
    ObservedWorkerOptions observed;
  };

  // The elements of one parameter: float32, row-major, in host memory. Valid
  // until the session ends.
  struct ParameterMemory {
    float* data = nullptr;
    int64_t elements = 0;
  };

  // What a pull brought.
  struct Pulled {
    Version version;
    std::vector<LayerStatistics> statistics;
    std::string front_end_state;
  };

  // A gradient and the owner of its memory; absent if the parameter has none.
  struct Gradient {
    const float* data = nullptr;
    std::shared_ptr<const void> owner;
  };

  // Errors: those of MakeGrpcClient and ObservedWorker::Start.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Make(
      const Options& options);

  absl::StatusOr<Membership> Join();

  // Registers the model and plan. The initial values are those in `memory`,
  // which has one entry a parameter of the layout.
  // Errors: those of Client::Register.
  absl::Status Register(ModelLayout layout, const RunPlan& plan,
                        std::vector<ParameterMemory> memory,
                        std::vector<LayerStatistics> statistics);
  double loss_reference() const { return loss_reference_; }

  // Errors: those of Client::NextAssignment that are final.
  absl::StatusOr<Assignment> NextAssignment();

  // Loads the weights that the assignment is computed from. Returns what was
  // read; absent if the weights in memory fit.
  // Errors: those of Client::Pull.
  absl::StatusOr<std::optional<Pulled>> ReadWeights(
      const Assignment& assignment);
  // Reads a version's moving statistics; with `weights`, loads its weights too.
  absl::StatusOr<Pulled> Read(const PullOptions& options);
  // The version of the weights in memory.
  const std::optional<Version>& version() const { return held_->version(); }
  // The moving statistics of that version; empty if it has none.
  const std::vector<LayerStatistics>& statistics() const { return statistics_; }

  // ---- one training step, in this order
  void BeginStep(const Assignment& assignment);
  // Not OK once the step is void.
  const absl::Status& step_status() const { return step_status_; }
  // Each call's moments of all members: a rendezvous under global
  // normalisation, otherwise the local ones, which are kept for the closing.
  // `local` must not be empty.
  std::vector<Moments> Reduce(absl::Span<const Contribution> local);
  void OpenStep(const PushOpening& opening);
  // The gradient of one parameter is final.
  // Errors: Internal if it was final before in this step.
  absl::Status TakeGradient(size_t parameter, Gradient gradient);
  // Ends the step: sends the gradients that are missing and waits for the
  // verdict. `closing` needs no moments.
  // Errors: the reason if the step is void.
  absl::StatusOr<PushVerdict> CloseStep(PushClosing closing);
  // What became of the last push whose closing was sent without an answer.
  enum class LastPush {
    // There is none, or it is not part of any version: its batch comes again.
    kRepeat,
    // It is part of a version.
    kCounted,
    // Nobody knows, because the server or this worker began anew. A batch that
    // came again might count twice.
    kUnknown,
  };
  // Asks the server. Call it within a training assignment, before OpenStep.
  // Errors: those of Client::RepeatClosing; the assignment is void.
  absl::StatusOr<LastPush> SettleLastPush(const Assignment& assignment);

  // Ends a step that is not to be sent.
  void AbandonStep(const std::string& reason);

  // ---- the other assignments
  absl::Status ReportEvaluation(const EvaluationSums& sums);
  absl::Status ReportMoments(absl::Span<const CallMoments> calls);
  // Moments that were kept since BeginStep, ascending by (layer, call).
  std::vector<CallMoments> TakeMoments();

  // ---- where the time goes; phases nest
  void EnterPhase(StepPhase phase);
  void LeavePhase();

  void Leave(const Departure& departure);
  void RequestStop() { client_->RequestStop(); }
  absl::Status trace_status() const { return observed_->trace_status(); }

 private:
  WorkerSession(std::unique_ptr<ObservedWorker> observed,
                std::unique_ptr<Client> client);

  void Load(absl::Span<const ByteRope> weights);
  void Hold(Version version, const PullOptions& read = {});
  // Notes why the step is void; the first reason counts.
  void Void(const absl::Status& status);
  void Send(absl::Span<const int32_t> partitions);
  absl::Status SendOne(int32_t partition);
  absl::StatusOr<PushVerdict> Close(PushClosing& closing);
  absl::Status CheckStatistics(
      absl::Span<const LayerStatistics> statistics) const;
  void EndStep(const absl::StatusOr<PushVerdict>& verdict, double loss_sum);
  void LeaveAllPhases();

  // Fixed after construction.
  const std::unique_ptr<ObservedWorker> observed_;
  const std::unique_ptr<Client> client_;
  const SteadyClock clock_;
  StepPhases phases_;
  TimedClient timed_;

  // Set by Register.
  ModelLayout layout_;
  std::vector<Partition> partitions_;
  std::vector<ParameterMemory> memory_;
  double loss_reference_ = 1;
  std::optional<PartitionSchedule> schedule_;
  std::optional<HeldVersion> held_;
  std::vector<LayerStatistics> statistics_;

  // The assignment in progress.
  Assignment assignment_;
  absl::Status step_status_;
  bool opened_ = false;
  PushOpening opening_;
  std::vector<Gradient> gradients_;
  std::vector<CallMoments> kept_;
  // To rendezvous, in this step.
  int64_t contributions_ = 0;
  std::vector<std::unique_ptr<StepPhases::Scope>> scopes_;

  // A closing that was sent and not answered.
  struct Unanswered {
    PushKey key;
    PushClosing closing;
    Incarnation incarnation;
  };
  std::optional<Unanswered> unanswered_;
};

}  // namespace cohort
