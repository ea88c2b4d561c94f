#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/timeline.h"
#include "worker/batch_norm/rendezvous.h"
#include "worker/client/client.h"
#include "worker/client/held_version.h"
#include "worker/session/model_memory.h"
#include "worker/session/partition_schedule.h"
#include "worker/telemetry/step_phases.h"
#include "worker/telemetry/trainer_observer.h"

namespace cohort {

// A worker without its computation. It knows the assignment in progress and the
// version of the weights in the model, sends each partition of the gradient
// when it is final and its turn has come, settles pushes that were not
// answered, and measures where the time of a step goes.
//
// Computation comes in from outside. The front-end says which gradients are
// final and what its sums are; a ModelMemory reads gradients and writes
// weights.
//
// Once a step is void (a rank was lost, the connection broke), each of its
// calls returns the reason and sends nothing. A front-end that can leave a pass
// does so with an exception. Where a script must run on, the front-end ignores
// the reason until the step ends.
//
// Thread safety: one thread at a time. It may be one of autograd's while the
// thread that drives the session waits for the pass. RequestStop is safe from
// any thread.
class WorkerSession final : public Rendezvous {
 public:
  struct Options {
    // Both must outlive the session and may be null.
    TrainerObserver* observer = nullptr;
    Timeline* timeline = nullptr;
    // The model's buffers hold the moving statistics of its version: they are
    // read with the weights, and requested with each push.
    bool with_statistics = false;
  };

  // `client` must outlive the session.
  WorkerSession(Client& client, const Options& options)
      : client_(client), options_(options), phases_(clock_, options.timeline) {}

  // Errors of these and all later calls: those of the client's calls.
  absl::StatusOr<Membership> Join();
  // Registers the model; see Client::Register. `memory` must outlive the
  // session. Its partitions are set here.
  absl::Status Register(ModelLayout layout, const RunPlan& plan,
                        absl::Span<const absl::Span<const float>> values,
                        absl::Span<const LayerStatistics> statistics,
                        ModelMemory& memory);
  double loss_reference() const { return loss_reference_; }

  // True for errors that make the assignment void but do not end the worker.
  static bool IsVoid(const absl::Status& status);
  // Errors: only those that are final.
  absl::StatusOr<Assignment> NextAssignment();

  // Loads the weights that the assignment is computed from. Returns what was
  // read, without the weights; absent if those in memory fit.
  absl::StatusOr<std::optional<PulledVersion>> ReadWeights(
      const Assignment& assignment);
  // Reads a version; if its weights are requested, loads them.
  absl::StatusOr<PulledVersion> Read(const PullOptions& options);
  // The version of the weights in memory; absent if they are not a version of
  // the server's.
  std::optional<Version> version() const;
  // The moving statistics of that version; empty if it has none, or without
  // Options::with_statistics.
  const std::vector<LayerStatistics>& statistics() const { return statistics_; }

  // The assignment is being computed until End.
  void Begin(const Assignment& assignment);
  // Not OK once the step is void.
  const absl::Status& step_status() const { return step_status_; }
  // The phases of the step in progress, for scopes of the computation.
  StepPhases& phases() { return phases_; }

  // ---- one training step, in this order

  // Meets the other members.
  // Errors also: Internal if an answer has another shape than its call.
  absl::StatusOr<std::vector<Moments>> Reduce(
      absl::Span<const Contribution> local) override;
  // Sets the opening's version and whether it takes statistics.
  absl::Status Open(PushOpening opening);
  // The gradient of one parameter is final. Sends the partitions whose turn it
  // is, as far as they have been fetched.
  // Errors also: Internal if it was final before in this step; those of
  //   ModelMemory.
  absl::Status Finish(size_t parameter);
  // The backward pass is over: sends the partitions that it has not completed,
  // and those still being fetched. Close does this too; a caller that has other
  // things to wait for before calls it first.
  absl::Status SendRest();
  // An update that another one follows is over (PushOpening::continues): sends
  // the rest, waits for the weights that it makes, and loads them. Then the
  // next one is opened.
  absl::Status EndUpdate();
  // Waits for the verdict and loads the weights that it brings. Sets the
  // closing's number of contributions.
  absl::StatusOr<PushVerdict> Close(PushClosing closing);

  // What became of the last push whose closing was sent without an answer.
  enum class LastPush {
    // There is none, or it is not part of any version: its batch comes again.
    kRepeat,
    // It is part of a version.
    kCounted,
    // It cannot be known, because the server or this worker was restarted. A
    // batch that came again might count twice.
    kUnknown,
  };
  // Asks the server. Call it within a training assignment, before Open. Only
  // for data that is not a function of the assignment.
  absl::StatusOr<LastPush> SettleLastPush(const Assignment& assignment);

  // ---- the other assignments
  absl::Status ReportEvaluation(const EvaluationSums& sums);
  absl::Status ReportMoments(absl::Span<const CallMoments> calls);

  // The assignment has ended: it is put on the timeline, and a step that has a
  // verdict is reported to the observer. Unless `status` is OK, the step is
  // void.
  void End(const absl::Status& status);

  void Leave(const Departure& departure);
  void RequestStop() { client_.RequestStop(); }

 private:
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options);
  void Hold(Version version, const PullOptions& read = {});
  // Records why the step is void; the first reason counts. Returns `status`.
  absl::Status Void(absl::Status status);
  absl::Status Send(absl::Span<const int32_t> partitions, bool wait);
  absl::Status SendGradients(absl::Span<const int32_t> partitions, bool wait);
  // Moves on to the weights that answered a push.
  absl::Status Take(const PushResult& result);
  absl::Status CheckAnswers(absl::Span<const Moments> all,
                            absl::Span<const Contribution> local) const;
  absl::Status CheckStatistics(
      absl::Span<const LayerStatistics> statistics) const;
  // The name of a layer, or the site of a call that is not registered.
  std::string NameOf(const CallPlace& place) const;
  StepPhases::Facts Facts() const;

  // Fixed after construction.
  Client& client_;
  const Options options_;
  const SteadyClock clock_;

  StepPhases phases_;

  // Set by Register.
  ModelLayout layout_;
  ModelMemory* memory_ = nullptr;
  double loss_reference_ = 1;
  std::optional<PartitionSchedule> schedule_;
  std::optional<HeldVersion> held_;
  std::vector<LayerStatistics> statistics_;

  // The assignment in progress.
  Assignment assignment_;
  absl::Status step_status_;
  PushOpening opening_;
  // To rendezvous, in this step.
  int64_t contributions_ = 0;
  // Set once its verdict has arrived.
  std::optional<StepReport> report_;

  // A closing that was sent and not answered.
  struct Unanswered {
    PushKey key;
    PushClosing closing;
    Incarnation incarnation;
  };
  std::optional<Unanswered> unanswered_;
};

}  // namespace cohort
