#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cohort::sim {

void SimWorker::Do(Scheduler::Event event) {
  if (dead_) return;
  if (frozen_) {
    deferred_.push_back(std::move(event));
  } else {
    event();
  }
}

void SimWorker::After(absl::Duration delay, Scheduler::Event event) {
  world_.scheduler.After(
      delay, [this, task = task_, event = std::move(event)]() mutable {
        Do([this, task, event = std::move(event)]() mutable {
          if (task == task_) event();
        });
      });
}

void SimWorker::Kill() {
  if (connection_ != nullptr) Close();
  dead_ = true;
  step_.reset();
}

void SimWorker::Vanish() {
  if (connection_ != nullptr) world_.network.Vanish(connection_);
  dead_ = true;
  step_.reset();
}

void SimWorker::Leave() {
  if (connection_ != nullptr && joined_) {
    world_.network.ToServer(connection_, StreamKind::kSession,
                            [connection = connection_](SimServer& server) {
                              server.Leave(connection);
                            });
  }
  Kill();
}

void SimWorker::Thaw() {
  frozen_ = false;
  std::vector<Scheduler::Event> deferred;
  deferred.swap(deferred_);
  for (Scheduler::Event& event : deferred) Do(std::move(event));
}

void SimWorker::Hang() {
  // Before the join, only its own lease waits for it.
  if (!joined_) return;
  NoteUnanswered();
  Abandon();
  hung_ = true;
}

void SimWorker::Close() {
  world_.network.CloseFromWorker(connection_);
  world_.shards.CloseFromWorker(connection_);
}

void SimWorker::Connect() {
  connection_ = world_.network.Connect(*this);
  connection_->data.resize(static_cast<size_t>(world_.shards.shards()) - 1);
  JoinRequest request{
      .rank = rank_,
      .incarnation = incarnation_,
      .batch_size =
          world_.scenario.run.batch_sizes[static_cast<size_t>(rank_.value())],
      .batch_size_max = world_.scenario.run.BatchMax(rank_)};
  if (incarnation_ != Incarnation()) {
    request.run_id = world_.scenario.run.coordinator.run_id;
  }
  world_.network.ToServer(
      connection_, StreamKind::kSession,
      [connection = connection_, request](SimServer& server) {
        server.Join(connection, request);
      });
}

void SimWorker::OnBroken() {
  if (connection_ == nullptr || finished_) return;
  Close();
  NoteUnanswered();
  if (unanswered_.has_value()) unanswered_->repeated = false;
  connection_ = nullptr;
  joined_ = false;
  hung_ = false;
  Abandon();
  work_.reset();
  ended_step_.reset();
  // At once, within the server's grace, or too late for it.
  constexpr std::array<absl::Duration, 3> kLongest = {
      absl::Milliseconds(10), absl::Milliseconds(250), absl::Milliseconds(800)};
  const absl::Duration longest =
      kLongest[static_cast<size_t>(world_.random.Below(kLongest.size()))];
  After(longest * world_.random.Uniform(), [this] { Connect(); });
}

void SimWorker::OnRefused(const absl::Status& status) {
  // The run continues with fewer workers, or does not have this many yet.
  if (absl::IsOutOfRange(status) || absl::IsInvalidArgument(status) ||
      absl::IsResourceExhausted(status)) {
    finished_ = true;
    return;
  }
  if (absl::IsAborted(status)) incarnation_ = Incarnation();
  OnBroken();
}

void SimWorker::OnJoined(Rank rank, Incarnation incarnation) {
  if (rank != rank_) world_.checker.Fail("joined as another rank");
  // Versions read in an older incarnation may have other numbers on this
  // server.
  if (incarnation_ != incarnation) weights_.clear();
  incarnation_ = incarnation;
  joined_ = true;
  Beat();
  if (registered_ != incarnation_) Register();
}

void SimWorker::Beat() {
  const SharedConnection connection = connection_;
  world_.scheduler.After(
      world_.scenario.run.coordinator.lease / 3, [this, connection] {
        Do([this, connection] {
          if (connection_ != connection || finished_) return;
          world_.network.ToServer(connection, StreamKind::kSession,
                                  [connection](SimServer& server) {
                                    server.Heartbeat(connection);
                                  });
          Beat();
        });
      });
}

Sender SimWorker::Identity() const {
  return {.run_id = world_.scenario.run.coordinator.run_id,
          .rank = rank_,
          .incarnation = incarnation_};
}

void SimWorker::Register() {
  world_.network.ToServer(
      connection_, StreamKind::kRegister,
      [connection = connection_, sender = Identity()](SimServer& server) {
        server.BeginRegister(connection, sender);
      });
}

void SimWorker::OnRegisterAnswered(const RegisterAnswer& answer) {
  partitions_ = answer.partitions;
  if (!answer.send_values) return OnRegistered();
  if (hung_) return;
  using Answer = absl::StatusOr<RegisterAnswer>;
  world_.network.Call<Answer>(
      connection_,
      [sender = Identity(),
       values = InitialValues(world_.scenario.run, partitions_, rank_)](
          SimServer& server) { return server.FinishRegister(sender, values); },
      [](SimWorker& worker, Answer finished) {
        return finished.ok() ? worker.OnRegistered() : worker.OnBroken();
      });
}

void SimWorker::OnRegistered() {
  registered_ = incarnation_;
  Proceed();
}

void SimWorker::OnAssignment(const Assignment& assignment) {
  Offer(assignment);
  Proceed();
}

bool SimWorker::StepEnded(const Assignment& assignment) const {
  return ended_step_.has_value() && !assignment.members.empty() &&
         *ended_step_ >= std::pair(assignment.version, assignment.attempt);
}

// Like the client's AssignmentTracker: anything older than what is already
// known is ignored, over whatever stream it comes.
void SimWorker::Offer(const Assignment& assignment) {
  if (assignment.kind == AssignmentKind::kWait) return;
  if (assignment.kind != AssignmentKind::kFinished) {
    const auto key = [](const Assignment& a) {
      return PushKey{.sequence = a.sequence, .attempt = a.attempt};
    };
    if (work_.has_value() && (work_->kind == AssignmentKind::kFinished ||
                              key(assignment) <= key(*work_))) {
      return;
    }
    if (StepEnded(assignment)) return;
  }
  work_ = assignment;
  taken_ = false;
}

void SimWorker::Proceed() {
  // An assignment may overtake the answer to the registration.
  if (hung_ || busy_ || !work_.has_value() || taken_ ||
      registered_ != incarnation_) {
    return;
  }
  if (work_->kind == AssignmentKind::kTrain && !SettleUnanswered(*work_)) {
    return;
  }
  taken_ = true;
  switch (work_->kind) {
    case AssignmentKind::kTrain:
      busy_ = true;
      return Train(*work_);
    case AssignmentKind::kEvaluate:
      busy_ = true;
      return Evaluate(*work_);
    case AssignmentKind::kCollectMoments:
      busy_ = true;
      return Collect(*work_);
    case AssignmentKind::kFinished:
      finished_ = true;
      if (!world_.checker.ended().has_value() &&
          !world_.checker.ended_before() &&
          !absl::StrContains(work_->reason, "the run continues with")) {
        world_.checker.Fail(absl::StrCat("rank ", rank_.value(),
                                         " is sent home: ", work_->reason));
      }
      return;
    case AssignmentKind::kWait:
      return;
  }
}

void SimWorker::Abandon() {
  ++task_;
  busy_ = false;
  step_.reset();
}

void SimWorker::OnStepAborted(Version step, Attempt attempt) {
  ended_step_ = std::max(ended_step_.value_or(std::pair(step, attempt)),
                         std::pair(step, attempt));
  if (!work_.has_value() || !StepEnded(*work_)) return;
  taken_ = true;
  if (step_ == nullptr) return;
  step_->aborted = true;
  // The others continue and send until they would have to wait.
  if (step_->phase == Phase::kComputing && world_.random.Below(2) == 0) return;
  // If a later step ended, this one was committed before, and its verdict comes
  // on another stream.
  if (step > step_->assignment.version) NoteUnanswered();
  Abandon();
  Proceed();
}

void SimWorker::Compute(const Assignment& assignment) {
  step_ = std::make_unique<Step>();
  step_->assignment = assignment;
  step_->key = {.sequence = assignment.sequence, .attempt = assignment.attempt};
  IndexRange range = HasOwnData() ? BatchOf(own_, batch_) : assignment.range;
  const std::vector<IndexRange>& local = assignment.local_steps;
  const auto steps = static_cast<int64_t>(std::max<size_t>(local.size(), 1));
  if (!HasOwnData() && !local.empty()) {
    range = {.begin = local.front().begin,
             .end = local.front().begin + range.size()};
  }
  const int64_t batch_size = world_.scenario.run.BatchMax(rank_);
  if (!HasOwnData() && range.size() > steps * assignment.batches * batch_size) {
    world_.checker.Fail(absl::StrCat(
        "rank ", rank_.value(), " is given ", range.size(), " samples in ",
        assignment.batches, " batches of at most ", batch_size));
  }
  step_->input = {.spec = &world_.scenario.run,
                  .epoch = assignment.data_epoch,
                  .range = range,
                  .local_steps = HasOwnData() ? std::vector<IndexRange>()
                                              : assignment.local_steps,
                  .version = assignment.version,
                  .weights = weights_};
  step_->opening = {
      .version = version_,
      .samples = range.size(),
      .loss_weight = LossWeight(range),
      // Some are of a release that cannot.
      .takes_changes = assignment.gradients == ElementType::kBFloat16 &&
                       rank_.value() % 3 != 2,
      .continues = UpdatesOf(step_->input) > 1};
  step_->state = state_;
  if (ChangesState(world_.scenario.run.extras.states, version_)) {
    step_->state = NextState(state_);
    step_->closing.front_end_state = Encode(step_->state, rank_);
  }
  step_->calls = MadeCalls(step_->input);
  if (assignment.global_normalization && std::exchange(miscounts_, false)) {
    step_->miscounts = static_cast<Miscounts>(1 + world_.random.Below(3));
  }
  if (!std::exchange(has_state_, true) && world_.scenario.lacks > 0 &&
      world_.random.Uniform() < world_.scenario.lacks) {
    world_.network.ToServer(
        connection_, StreamKind::kSession,
        [sender = Identity(), key = step_->key](SimServer& server) {
          server.MissesState(sender, key);
        });
  }
  step_->backward_left = step_->calls.size();
  step_->backward.resize(step_->backward_left);
  step_->passes.resize(step_->backward_left);
  step_->unsent = SendOrder(partitions_);
  std::vector<int32_t>& unsent = step_->unsent;
  for (size_t i = unsent.size(); i > 1 && !world_.scenario.in_order; --i) {
    std::swap(unsent[i - 1], unsent[world_.random.Below(i)]);
  }
  step_->received.resize(partitions_.size());
  After(world_.network.Delay(), [this] { Forward(); });
}

void SimWorker::Forward() {
  Step& step = *step_;
  while (step.forward.size() < step.calls.size()) {
    const Moments local = ForwardMoments(
        step.input, step.calls[step.forward.size()], step.forward);
    step.local.push_back(local);
    if (MeetsOthers()) return Contribute(ReducePhase::kForward, {}, local);
    step.forward.push_back(local);
  }
  OpenPush();
  After(world_.network.Delay(), [this] { Backward(); });
}

void SimWorker::Contribute(ReducePhase phase, const std::vector<int32_t>& path,
                           const Moments& moments) {
  if (step_->aborted) {
    Abandon();
    return Proceed();
  }
  const size_t at = phase == ReducePhase::kForward ? step_->forward.size()
                                                   : step_->backward_left - 1;
  step_->phase = Phase::kReducing;
  step_->reduce = {.step = step_->assignment.version,
                   .attempt = step_->assignment.attempt,
                   .place = PlaceOf(step_->input, step_->calls[at])};
  step_->reduce.place.phase = phase;
  step_->reduce.place.path = path;
  const int copies =
      world_.random.Uniform() < world_.scenario.duplicates ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    world_.network.ToServer(connection_, StreamKind::kReduce,
                            [connection = connection_, sender = Identity(),
                             key = step_->reduce, moments](SimServer& server) {
                              server.Reduce(connection, sender, key, moments);
                            });
  }
}

void SimWorker::OnReduced(const ReduceKey& key, const Moments& moments) {
  if (step_ == nullptr || step_->phase != Phase::kReducing ||
      step_->reduce != key) {
    return;
  }
  step_->phase = Phase::kComputing;
  if (key.place.phase == ReducePhase::kForward) {
    step_->forward.push_back(moments);
    After(world_.network.Delay(), [this] { Forward(); });
    return;
  }
  const size_t at = step_->backward_left - 1;
  if (key.place.path.empty()) {
    step_->backward[at] = WithPass(moments, step_->passes[at]);
  } else {
    step_->passes[at] = moments;
  }
  After(world_.network.Delay(), [this] { Backward(); });
}

void SimWorker::OnReduceAborted(const ReduceKey& key) {
  if (step_ == nullptr || step_->phase != Phase::kReducing ||
      step_->reduce != key) {
    return;
  }
  Abandon();
  Proceed();
}

}  // namespace cohort::sim
