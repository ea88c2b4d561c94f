#include "worker/python/worker_session.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/log/log.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kFloatBytes = 4;

PushKey KeyOf(const Assignment& assignment) {
  return {.sequence = assignment.sequence, .attempt = assignment.attempt};
}

bool SameShapes(absl::Span<const Moments> results,
                absl::Span<const Contribution> local) {
  return std::equal(results.begin(), results.end(), local.begin(), local.end(),
                    [](const Moments& result, const Contribution& call) {
                      const size_t channels = call.moments.first.size();
                      return result.first.size() == channels &&
                             result.second.size() == channels &&
                             result.count >= call.moments.count;
                    });
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Make(
    const Options& options) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<ObservedWorker> observed,
                          ObservedWorker::Start(options.observed));
  ClientOptions client_options = options.client;
  client_options.hooks = &observed->telemetry();
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                          MakeGrpcClient(client_options));
  client->SetObserver(
      [](const std::string& text) { Log(LogLevel::kInfo, text); });
  return std::unique_ptr<WorkerSession>(
      new WorkerSession(std::move(observed), std::move(client)));
}

WorkerSession::WorkerSession(std::unique_ptr<ObservedWorker> observed,
                             std::unique_ptr<Client> client)
    : observed_(std::move(observed)),
      client_(std::move(client)),
      phases_(clock_, observed_->trace()),
      timed_(*client_, phases_) {}

absl::StatusOr<Membership> WorkerSession::Join() {
  phases_.Begin();
  return timed_.Join();
}

absl::Status WorkerSession::Register(ModelLayout layout, const RunPlan& plan,
                                     std::vector<ParameterMemory> memory,
                                     std::vector<LayerStatistics> statistics) {
  layout_ = std::move(layout);
  memory_ = std::move(memory);
  std::vector<absl::Span<const float>> values;
  for (const ParameterMemory& parameter : memory_) {
    values.push_back(absl::MakeConstSpan(
        parameter.data, static_cast<size_t>(parameter.elements)));
  }
  COHORT_ASSIGN_OR_RETURN(Registration registration,
                          timed_.Register(layout_, plan, values, statistics));
  partitions_ = std::move(registration.partitions);
  loss_reference_ = registration.loss_reference;
  schedule_.emplace(partitions_, memory_.size(),
                    std::move(registration.send_order));
  held_.emplace(client_->incarnation());
  gradients_.resize(memory_.size());
  return absl::OkStatus();
}

absl::StatusOr<Assignment> WorkerSession::NextAssignment() {
  observed_->telemetry().OnState(TrainerState::kWaiting);
  phases_.Begin();
  for (;;) {
    absl::StatusOr<Assignment> next = timed_.NextAssignment();
    if (next.ok() || !(absl::IsAborted(next.status()) ||
                       absl::IsUnavailable(next.status()))) {
      return next;
    }
  }
}

absl::StatusOr<std::optional<WorkerSession::Pulled>> WorkerSession::ReadWeights(
    const Assignment& assignment) {
  std::optional<PullOptions> missing =
      held_->MissingFor(assignment, client_->incarnation());
  if (!missing.has_value()) return std::nullopt;
  // A version is weights and statistics.
  missing->statistics = true;
  COHORT_ASSIGN_OR_RETURN(Pulled pulled, Read(*missing));
  return std::make_optional(std::move(pulled));
}

absl::StatusOr<WorkerSession::Pulled> WorkerSession::Read(
    const PullOptions& options) {
  COHORT_ASSIGN_OR_RETURN(PulledVersion pulled, timed_.Pull(options));
  if (options.weights) {
    held_->Forget();
    Load(pulled.weights);
    Hold(pulled.version, options);
    if (options.statistics) statistics_ = pulled.statistics;
  }
  return Pulled{.version = pulled.version,
                .statistics = std::move(pulled.statistics),
                .front_end_state = std::move(pulled.front_end_state)};
}

void WorkerSession::Load(absl::Span<const ByteRope> weights) {
  for (size_t p = 0; p < weights.size(); ++p) {
    if (weights[p].size_bytes() == 0) continue;
    RopeReader reader(weights[p]);
    for (const Slice& slice : partitions_[p].slices) {
      float* to =
          memory_[static_cast<size_t>(slice.parameter)].data + slice.offset;
      reader.Read(to, slice.count * kFloatBytes);
    }
  }
}

void WorkerSession::Hold(Version version, const PullOptions& read) {
  held_->Hold(version, read);
  observed_->telemetry().OnWeights(version);
}

// ---- one step

void WorkerSession::BeginStep(const Assignment& assignment) {
  observed_->telemetry().OnState(assignment.kind == AssignmentKind::kTrain
                                     ? TrainerState::kTraining
                                 : assignment.kind == AssignmentKind::kEvaluate
                                     ? TrainerState::kEvaluating
                                     : TrainerState::kCollecting);
  assignment_ = assignment;
  step_status_ = absl::OkStatus();
  opened_ = false;
  opening_ = {};
  std::fill(gradients_.begin(), gradients_.end(), Gradient());
  kept_.clear();
  contributions_ = 0;
  schedule_->Begin();
}

void WorkerSession::Void(const absl::Status& status) {
  if (step_status_.ok()) step_status_ = status;
}

std::vector<Moments> WorkerSession::Reduce(
    absl::Span<const Contribution> local) {
  const bool meets = assignment_.kind == AssignmentKind::kTrain &&
                     assignment_.global_normalization;
  if (meets && step_status_.ok()) {
    contributions_ += static_cast<int64_t>(local.size());
    absl::StatusOr<std::vector<Moments>> all = timed_.Reduce(
        {.step = assignment_.version, .attempt = assignment_.attempt}, local);
    if (all.ok() && SameShapes(*all, local)) return *std::move(all);
    Void(all.ok() ? absl::InternalError("a rendezvous returned results of "
                                        "another shape than its layers")
                  : all.status());
  }
  std::vector<Moments> own;
  for (const Contribution& call : local) {
    own.push_back(call.moments);
    const CallPlace& place = call.place;
    if (meets || place.phase != ReducePhase::kForward || place.layer < 0) {
      continue;
    }
    kept_.push_back(
        {.layer = place.layer, .call = place.call, .moments = call.moments});
  }
  return own;
}

void WorkerSession::OpenStep(const PushOpening& opening) {
  opening_ = opening;
  opening_.version = held_->version().value_or(assignment_.version);
  opening_.takes_statistics = !layout_.batch_norms.empty();
  if (!step_status_.ok()) return;
  const absl::Status status = timed_.OpenPush(opening_);
  opened_ = status.ok();
  if (!status.ok()) Void(status);
}

absl::Status WorkerSession::TakeGradient(size_t parameter, Gradient gradient) {
  if (schedule_->IsFinal(parameter)) {
    return absl::InternalError(absl::StrCat(
        layout_.parameters[parameter].name,
        ": got a second gradient in one backward pass, want one: its "
        "partition may already have been sent"));
  }
  gradients_[parameter] = std::move(gradient);
  Send(schedule_->Finish(parameter));
  return absl::OkStatus();
}

void WorkerSession::Send(absl::Span<const int32_t> partitions) {
  for (const int32_t partition : partitions) {
    if (!step_status_.ok() || !opened_) return;
    const absl::Status status = SendOne(partition);
    if (!status.ok()) Void(status);
  }
}

absl::Status WorkerSession::SendOne(int32_t partition) {
  const Partition& shape = partitions_[static_cast<size_t>(partition)];
  ByteRope bytes;
  std::vector<int32_t> absent;
  const bool none = std::all_of(
      shape.slices.begin(), shape.slices.end(), [this](const Slice& slice) {
        return gradients_[static_cast<size_t>(slice.parameter)].data == nullptr;
      });
  for (size_t i = 0; i < shape.slices.size(); ++i) {
    const Slice& slice = shape.slices[i];
    const Gradient& gradient = gradients_[static_cast<size_t>(slice.parameter)];
    const auto size = static_cast<size_t>(slice.count * kFloatBytes);
    if (gradient.data == nullptr) {
      absent.push_back(static_cast<int32_t>(i));
      // A frozen partition sends no bytes.
      if (none) continue;
      auto zeros = std::make_shared<const std::vector<std::byte>>(size);
      bytes.Append(absl::MakeConstSpan(*zeros), zeros);
      continue;
    }
    bytes.Append(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(
                                         gradient.data + slice.offset),
                                     size),
                 gradient.owner);
  }
  return timed_.SendGradient(partition, std::move(bytes), absent);
}

absl::StatusOr<PushVerdict> WorkerSession::CloseStep(PushClosing closing) {
  Send(schedule_->Rest());
  const double loss_sum = closing.loss_sum;
  absl::StatusOr<PushVerdict> verdict = Close(closing);
  EndStep(verdict, loss_sum);
  return verdict;
}

absl::StatusOr<PushVerdict> WorkerSession::Close(PushClosing& closing) {
  COHORT_RETURN_IF_ERROR(step_status_);
  closing.moments = TakeMoments();
  closing.contributions = contributions_;
  unanswered_ = {.key = KeyOf(assignment_),
                 .closing = closing,
                 .incarnation = client_->incarnation()};
  COHORT_ASSIGN_OR_RETURN(const PushResult result, timed_.ClosePush(closing));
  unanswered_.reset();
  const StepPhases::Scope push(phases_, StepPhase::kPush);
  const auto outcome = HeldVersion::OutcomeOf(result, partitions_);
  if (outcome == HeldVersion::Outcome::kUnknown) {
    held_->Forget();
  } else {
    if (outcome == HeldVersion::Outcome::kArrived) Load(result.weights);
    COHORT_RETURN_IF_ERROR(CheckStatistics(result.verdict.statistics));
    statistics_ = result.verdict.statistics;
    Hold(result.verdict.version);
  }
  return result.verdict;
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

void WorkerSession::EndStep(const absl::StatusOr<PushVerdict>& verdict,
                            double loss_sum) {
  LeaveAllPhases();
  StepPhases::Facts facts;
  if (phases_.traced()) {
    facts = {{"sequence", assignment_.sequence.value()},
             {"attempt", int64_t{assignment_.attempt.value()}},
             {"version", assignment_.version.value()},
             {"samples", opening_.samples}};
    if (!verdict.ok()) {
      facts.emplace_back("ended", std::string(verdict.status().message()));
    } else {
      facts.emplace_back("next_version", verdict->version.value());
    }
  }
  const PhaseTimes times = phases_.End("step", std::move(facts));
  // Gradients of a step that is over are not needed any more.
  std::fill(gradients_.begin(), gradients_.end(), Gradient());
  if (!verdict.ok()) return;
  StepReport report{.version = verdict->version,
                    .verdict = verdict->verdict,
                    .samples = opening_.samples,
                    .phases = times};
  if (opening_.loss_weight > 0) report.loss = loss_sum / opening_.loss_weight;
  observed_->telemetry().OnStep(report);
}

absl::StatusOr<WorkerSession::LastPush> WorkerSession::SettleLastPush(
    const Assignment& assignment) {
  // The same push is sent again: the server knows it by its key.
  if (!unanswered_.has_value() || unanswered_->key == KeyOf(assignment)) {
    return LastPush::kRepeat;
  }
  if (unanswered_->incarnation != client_->incarnation()) {
    unanswered_.reset();
    return LastPush::kUnknown;
  }
  COHORT_ASSIGN_OR_RETURN(
      const PushVerdict verdict,
      timed_.RepeatClosing(unanswered_->key, unanswered_->closing));
  unanswered_.reset();
  return IsApplied(verdict.verdict) || verdict.verdict == Verdict::kSkipped
             ? LastPush::kCounted
             : LastPush::kRepeat;
}

void WorkerSession::AbandonStep(const std::string& reason) {
  Void(absl::AbortedError(reason));
  EndStep(step_status_, 0);
}

// ---- the other assignments

absl::Status WorkerSession::ReportEvaluation(const EvaluationSums& sums) {
  const absl::Status status = timed_.ReportEvaluation(sums);
  LeaveAllPhases();
  phases_.End("evaluate", {});
  return status;
}

absl::Status WorkerSession::ReportMoments(absl::Span<const CallMoments> calls) {
  const absl::Status status = timed_.ReportMoments(calls);
  LeaveAllPhases();
  phases_.End("collect moments", {});
  return status;
}

std::vector<CallMoments> WorkerSession::TakeMoments() {
  std::vector<CallMoments> moments = std::exchange(kept_, {});
  std::sort(moments.begin(), moments.end(),
            [](const CallMoments& a, const CallMoments& b) {
              return std::tie(a.layer, a.call) < std::tie(b.layer, b.call);
            });
  return moments;
}

// ---- phases

void WorkerSession::EnterPhase(StepPhase phase) {
  scopes_.push_back(std::make_unique<StepPhases::Scope>(phases_, phase));
}

void WorkerSession::LeavePhase() {
  if (!scopes_.empty()) scopes_.pop_back();
}

void WorkerSession::LeaveAllPhases() {
  // Inner ones first.
  while (!scopes_.empty()) scopes_.pop_back();
}

void WorkerSession::Leave(const Departure& departure) {
  LeaveAllPhases();
  timed_.Leave(departure);
}

}  // namespace cohort
