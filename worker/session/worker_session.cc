#include "worker/session/worker_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/element_type.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

struct KindNames {
  TrainerState state;
  const char* span;
};

KindNames NamesOf(AssignmentKind kind) {
  switch (kind) {
    case AssignmentKind::kEvaluate:
      return {.state = TrainerState::kEvaluating, .span = "evaluate"};
    case AssignmentKind::kCollectMoments:
      return {.state = TrainerState::kCollecting, .span = "collect moments"};
    default:
      return {.state = TrainerState::kTraining, .span = "step"};
  }
}

PushKey KeyOf(const Assignment& assignment) {
  return {.sequence = assignment.sequence, .attempt = assignment.attempt};
}

// While it lives, the worker waits for others.
struct Waiting : StepPhases::Scope {
  Waiting(StepPhases& phases, const char* what)
      : Scope(phases, StepPhase::kWait) {
    if (phases.traced()) AddFact("for", what);
  }
};

}  // namespace

absl::StatusOr<Membership> WorkerSession::Join() {
  phases_.Begin();
  return client_.Join();
}

absl::Status WorkerSession::Register(
    ModelLayout layout, const RunPlan& plan,
    absl::Span<const absl::Span<const float>> values,
    absl::Span<const LayerStatistics> statistics, ModelMemory& memory) {
  layout_ = std::move(layout);
  COHORT_ASSIGN_OR_RETURN(Registration registration,
                          client_.Register(layout_, plan, values, statistics));
  loss_reference_ = registration.loss_reference;
  schedule_.emplace(registration.partitions, layout_.parameters.size(),
                    std::move(registration.send_order));
  held_.emplace(client_.incarnation());
  memory_ = &memory;
  memory_->SetPartitions(std::move(registration.partitions));
  return absl::OkStatus();
}

bool WorkerSession::IsVoid(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status) ||
         absl::IsOutOfRange(status);
}

absl::StatusOr<Assignment> WorkerSession::NextAssignment() {
  for (;;) {
    if (options_.observer != nullptr) {
      options_.observer->OnState(TrainerState::kWaiting);
    }
    phases_.Begin();
    const Waiting wait(phases_, "assignment");
    absl::StatusOr<Assignment> next = client_.NextAssignment();
    if (!IsVoid(next.status())) return next;
  }
}

absl::StatusOr<std::optional<PulledVersion>> WorkerSession::ReadWeights(
    const Assignment& assignment) {
  std::optional<PullOptions> missing =
      held_->MissingFor(assignment, client_.incarnation());
  if (!missing.has_value()) return std::optional<PulledVersion>();
  missing->statistics = options_.with_statistics;
  return Read(*missing);
}

absl::StatusOr<PulledVersion> WorkerSession::Read(const PullOptions& options) {
  COHORT_ASSIGN_OR_RETURN(PulledVersion pulled, Pull(options));
  if (!options.weights) return pulled;
  // If loading fails, the memory may hold parts of two versions.
  held_->Forget();
  COHORT_RETURN_IF_ERROR(memory_->Load(pulled.weights));
  pulled.weights.clear();
  Hold(pulled.version, options);
  if (options.statistics) statistics_ = pulled.statistics;
  return pulled;
}

absl::StatusOr<PulledVersion> WorkerSession::Pull(const PullOptions& options) {
  const Waiting wait(phases_, "pull");
  return client_.Pull(options);
}

std::optional<Version> WorkerSession::version() const {
  return held_.has_value() ? held_->version() : std::nullopt;
}

void WorkerSession::Hold(Version version, const PullOptions& read) {
  held_->Hold(version, read);
  if (options_.observer != nullptr) options_.observer->OnWeights(version);
}

// ---- one step

void WorkerSession::Begin(const Assignment& assignment) {
  if (options_.observer != nullptr) {
    options_.observer->OnState(NamesOf(assignment.kind).state);
  }
  assignment_ = assignment;
  step_status_ = absl::OkStatus();
  opening_ = {};
  contributions_ = 0;
  report_.reset();
  // A push that was given up may have left gradients behind.
  memory_->Drop();
  schedule_->Begin();
}

absl::Status WorkerSession::Void(absl::Status status) {
  if (step_status_.ok()) step_status_ = status;
  return status;
}

absl::StatusOr<std::vector<Moments>> WorkerSession::Reduce(
    absl::Span<const Contribution> local) {
  COHORT_RETURN_IF_ERROR(step_status_);
  contributions_ += static_cast<int64_t>(local.size());
  StepPhases::Scope rendezvous(phases_, StepPhase::kRendezvous);
  if (phases_.traced() && !local.empty()) {
    rendezvous.AddFact(
        "layer",
        absl::StrJoin(local, ", ",
                      [this](std::string* out, const Contribution& call) {
                        absl::StrAppend(out, NameOf(call.place));
                      }));
    const CallPlace& place = local.front().place;
    const bool forward = place.phase == ReducePhase::kForward;
    rendezvous.AddFact("phase", forward ? "forward" : "backward");
    rendezvous.AddFact("call", int64_t{place.call});
  }
  absl::StatusOr<std::vector<Moments>> all = client_.Reduce(
      {.step = assignment_.version, .attempt = assignment_.attempt}, local);
  COHORT_RETURN_IF_ERROR(
      Void(all.ok() ? CheckAnswers(*all, local) : all.status()));
  return all;
}

absl::Status WorkerSession::CheckAnswers(
    absl::Span<const Moments> all, absl::Span<const Contribution> local) const {
  if (all.size() != local.size()) {
    return absl::InternalError(absl::StrCat("rendezvous: got ", all.size(),
                                            " answers, want ", local.size()));
  }
  for (size_t i = 0; i < local.size(); ++i) {
    const Moments& answer = all[i];
    const size_t channels = local[i].moments.first.size();
    if (answer.first.size() == channels && answer.second.size() == channels &&
        answer.count >= local[i].moments.count) {
      continue;
    }
    return absl::InternalError(absl::StrCat(
        NameOf(local[i].place), ": the rendezvous returned ",
        answer.first.size(), " and ", answer.second.size(),
        " channels and count ", answer.count, ", want ", channels,
        " channels and a count of at least ", local[i].moments.count));
  }
  return absl::OkStatus();
}

std::string WorkerSession::NameOf(const CallPlace& place) const {
  return place.layer < 0
             ? place.site
             : layout_.batch_norms[static_cast<size_t>(place.layer)].name;
}

absl::Status WorkerSession::Open(PushOpening opening) {
  opening_ = std::move(opening);
  opening_.version = version().value_or(assignment_.version);
  opening_.takes_statistics =
      options_.with_statistics && !layout_.batch_norms.empty();
  COHORT_RETURN_IF_ERROR(step_status_);
  const StepPhases::Scope push(phases_, StepPhase::kPush);
  return Void(client_.OpenPush(opening_));
}

absl::Status WorkerSession::Finish(size_t parameter) {
  if (schedule_->IsFinal(parameter)) {
    return absl::InternalError(
        absl::StrCat(layout_.parameters[parameter].name,
                     ": got a second gradient in one backward pass, want one: "
                     "its partition may already have been sent"));
  }
  return Send(schedule_->Finish(parameter), /*wait=*/false);
}

absl::Status WorkerSession::SendRest() {
  return Send(schedule_->Rest(), /*wait=*/true);
}

absl::Status WorkerSession::Send(absl::Span<const int32_t> partitions,
                                 bool wait) {
  COHORT_RETURN_IF_ERROR(step_status_);
  return Void(SendGradients(partitions, wait));
}

absl::Status WorkerSession::SendGradients(absl::Span<const int32_t> partitions,
                                          bool wait) {
  for (const int32_t partition : partitions) {
    COHORT_RETURN_IF_ERROR(memory_->Fetch(partition));
  }
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(std::optional<ModelMemory::Gradient> gradient,
                            memory_->Take(wait));
    if (!gradient.has_value()) return absl::OkStatus();
    StepPhases::Scope push(phases_, StepPhase::kPush);
    if (phases_.traced()) {
      push.AddFact("partition", int64_t{gradient->partition});
      push.AddFact("bytes", gradient->bytes.size_bytes() /
                                BytesOf(ElementType::kFloat32) *
                                BytesOf(assignment_.gradients));
    }
    COHORT_RETURN_IF_ERROR(client_.SendGradient(gradient->partition,
                                                std::move(gradient->bytes),
                                                gradient->absent_slices));
  }
}

absl::Status WorkerSession::EndUpdate() {
  COHORT_RETURN_IF_ERROR(SendRest());
  absl::StatusOr<std::vector<ByteRope>> weights;
  {
    const Waiting wait(phases_, "update");
    weights = client_.AwaitUpdate();
  }
  COHORT_RETURN_IF_ERROR(Void(weights.status()));
  held_->Draft();
  schedule_->Begin();
  return Void(memory_->Load(*weights));
}

absl::StatusOr<PushVerdict> WorkerSession::Close(PushClosing closing) {
  COHORT_RETURN_IF_ERROR(SendRest());
  closing.contributions = contributions_;
  // Before the call, and kept if that fails: SettleLastPush asks about it.
  unanswered_ = {.key = KeyOf(assignment_),
                 .closing = std::move(closing),
                 .incarnation = client_.incarnation()};
  absl::StatusOr<PushResult> result;
  {
    const Waiting wait(phases_, "verdict");
    result = client_.ClosePush(unanswered_->closing);
  }
  COHORT_RETURN_IF_ERROR(result.status());
  report_ = {.version = result->verdict.version,
             .verdict = result->verdict.verdict,
             .samples = opening_.samples};
  if (opening_.loss_weight > 0) {
    report_->loss = unanswered_->closing.loss_sum / opening_.loss_weight;
  }
  unanswered_.reset();
  COHORT_RETURN_IF_ERROR(Take(*result));
  return std::move(result->verdict);
}

absl::Status WorkerSession::Take(const PushResult& result) {
  const StepPhases::Scope push(phases_, StepPhase::kPush);
  auto outcome = HeldVersion::OutcomeOf(result, memory_->partitions());
  // A step that was skipped has taken its updates back, and brings no weights.
  if (held_->is_draft() && outcome == HeldVersion::Outcome::kSame) {
    outcome = HeldVersion::Outcome::kUnknown;
  }
  if (outcome != HeldVersion::Outcome::kSame) held_->Forget();
  if (outcome == HeldVersion::Outcome::kUnknown) return absl::OkStatus();
  if (outcome == HeldVersion::Outcome::kArrived) {
    COHORT_RETURN_IF_ERROR(memory_->Load(result.weights));
  }
  COHORT_RETURN_IF_ERROR(CheckStatistics(result.verdict.statistics));
  statistics_ = result.verdict.statistics;
  Hold(result.verdict.version);
  return absl::OkStatus();
}

absl::Status WorkerSession::CheckStatistics(
    absl::Span<const LayerStatistics> statistics) const {
  if (statistics.empty()) return absl::OkStatus();
  bool fits = statistics.size() == layout_.batch_norms.size();
  for (size_t i = 0; fits && i < statistics.size(); ++i) {
    const auto channels = static_cast<size_t>(layout_.batch_norms[i].channels);
    fits = statistics[i].mean.size() == channels &&
           statistics[i].variance.size() == channels;
  }
  if (fits) return absl::OkStatus();
  return absl::InternalError(
      "a verdict's moving statistics have another shape than the layers");
}

absl::StatusOr<WorkerSession::LastPush> WorkerSession::SettleLastPush(
    const Assignment& assignment) {
  // The same push is sent again: the server knows it by its key.
  if (!unanswered_.has_value() || unanswered_->key == KeyOf(assignment)) {
    return LastPush::kRepeat;
  }
  if (unanswered_->incarnation != client_.incarnation()) {
    unanswered_.reset();
    return LastPush::kUnknown;
  }
  COHORT_ASSIGN_OR_RETURN(
      const PushVerdict verdict,
      client_.RepeatClosing(unanswered_->key, unanswered_->closing));
  unanswered_.reset();
  return IsApplied(verdict.verdict) || verdict.verdict == Verdict::kSkipped
             ? LastPush::kCounted
             : LastPush::kRepeat;
}

// ---- the other assignments

absl::Status WorkerSession::ReportEvaluation(const EvaluationSums& sums) {
  const Waiting wait(phases_, "report");
  return client_.ReportEvaluation(sums);
}

absl::Status WorkerSession::ReportMoments(absl::Span<const CallMoments> calls) {
  const Waiting wait(phases_, "report");
  return client_.ReportMoments(calls);
}

void WorkerSession::End(const absl::Status& status) {
  Void(status).IgnoreError();
  const PhaseTimes times =
      phases_.End(NamesOf(assignment_.kind).span,
                  phases_.traced() ? Facts() : StepPhases::Facts());
  if (!report_.has_value() || options_.observer == nullptr) return;
  report_->phases = times;
  options_.observer->OnStep(*report_);
}

void WorkerSession::Leave(const Departure& departure) {
  phases_.LeaveAll();
  client_.Leave(departure);
}

StepPhases::Facts WorkerSession::Facts() const {
  StepPhases::Facts facts = {
      {"sequence", assignment_.sequence.value()},
      {"attempt", int64_t{assignment_.attempt.value()}},
      {"version", assignment_.version.value()},
      // A batch of the program's own is not a range.
      {"samples",
       opening_.samples > 0 ? opening_.samples : assignment_.range.size()}};
  if (!step_status_.ok()) {
    facts.emplace_back("ended", std::string(step_status_.message()));
  }
  if (report_.has_value()) {
    facts.emplace_back("next_version", report_->version.value());
  }
  return facts;
}

}  // namespace cohort
