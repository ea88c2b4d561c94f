#include "tests/run_host/thread_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

// Passes what a stream sends to the inbox of its worker.
template <typename Stream>
class Noting : public Stream {
 public:
  explicit Noting(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)) {}
  void End(const absl::Status& status) override { inbox_->Ended(status); }

 protected:
  const std::shared_ptr<Inbox> inbox_;
};

class NotingSession final : public Noting<SessionStream> {
 public:
  using Noting::Noting;
  void SendJoined(const effect::Joined& joined) override {
    inbox_->Joined(joined);
  }
  void SendAssignment(const Assignment& assignment) override {
    inbox_->Assigned(assignment);
  }
  void SendStepAborted(const effect::StepAborted&) override {}
};

class NotingRegister final : public Noting<RegisterStream> {
 public:
  using Noting::Noting;
  void SendAnswer(const absl::StatusOr<RegisterAnswer>& answer) override {
    inbox_->Answered(answer);
  }
  void End(const absl::Status& status) override { inbox_->Answered(status); }
};

class NotingExchange final : public Noting<ExchangeStream> {
 public:
  using Noting::Noting;
  void Resume() override { inbox_->Resumed(); }
  void SendWeights(const WeightsMessage&) override {}
  void SendVerdict(const effect::SendVerdict& verdict) override {
    inbox_->Decided(verdict);
  }
};

class NotingReduce final : public Noting<ReduceStream> {
 public:
  using Noting::Noting;
  void SendResults(absl::Span<const effect::ReduceResult* const> results,
                   EncodedResults&) override {
    for (const effect::ReduceResult* result : results) {
      inbox_->Reduced(result->key, *result->moments);
    }
  }
  // The notice on the session gives the next assignment.
  void SendAborted(const effect::ReduceAborted&) override {}
};

PushKey KeyOf(const Assignment& assignment) {
  return {.sequence = assignment.sequence, .attempt = assignment.attempt};
}

}  // namespace

ModelLayout ThreadLayout() {
  ModelLayout layout;
  for (const char* name : {"a", "b", "c"}) {
    layout.parameters.push_back({.name = name, .shape = {1000}});
  }
  layout.batch_norms = {{.name = "bn", .channels = 2}};
  return layout;
}

RunPlan ThreadPlan(int64_t samples) {
  return {.dataset = "numbers",
          .dataset_digest = "ab",
          .train_samples = samples,
          .test_samples = 4,
          .loss_reference = 4};
}

template <typename Condition>
void Inbox::Await(Condition condition) {
  while (!condition()) {
    if (changed_.WaitFor(mu_, absl::Minutes(1))) continue;
    ADD_FAILURE() << "a worker waits for a message that does not come";
    ended_ = true;
  }
}

bool Inbox::Replaced(Sequence sequence) const {
  return newest_.has_value() && (newest_->kind == AssignmentKind::kFinished ||
                                 newest_->sequence > sequence);
}

void Inbox::Joined(const effect::Joined& joined) {
  MutexLock lock(mu_);
  incarnation_ = joined.incarnation;
  changed_.NotifyAll();
}

void Inbox::Assigned(const Assignment& assignment) {
  // The assignment after a wait comes without a request, under the same number.
  if (assignment.kind == AssignmentKind::kWait) return;
  MutexLock lock(mu_);
  // The end of the run has no number.
  if (assignment.kind != AssignmentKind::kFinished &&
      Replaced(assignment.sequence)) {
    return;
  }
  newest_ = assignment;
  changed_.NotifyAll();
}

void Inbox::Answered(const absl::StatusOr<RegisterAnswer>& answer) {
  MutexLock lock(mu_);
  if (!answer_.has_value()) answer_ = answer;
  changed_.NotifyAll();
}

void Inbox::Decided(const effect::SendVerdict& verdict) {
  {
    MutexLock lock(mu_);
    ++verdicts_[verdict.key];
    EXPECT_EQ(verdicts_[verdict.key], 1) << "a push was answered twice";
    changed_.NotifyAll();
  }
  Assigned(verdict.verdict.next);
}

void Inbox::Reduced(const ReduceKey& key, const Moments& moments) {
  MutexLock lock(mu_);
  results_[key] = moments;
  changed_.NotifyAll();
}

void Inbox::Resumed() {
  MutexLock lock(mu_);
  ++resumed_;
  changed_.NotifyAll();
}

void Inbox::Ended(const absl::Status& status) {
  MutexLock lock(mu_);
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) ||
              absl::IsAborted(status))
      << status;
  ended_ = true;
  changed_.NotifyAll();
}

Incarnation Inbox::AwaitJoined() {
  MutexLock lock(mu_);
  Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return incarnation_.has_value() || ended_;
  });
  return incarnation_.value_or(Incarnation());
}

std::optional<RegisterAnswer> Inbox::AwaitAnswer() {
  MutexLock lock(mu_);
  Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return answer_.has_value() || ended_;
  });
  if (!answer_.has_value() || !answer_->ok()) return std::nullopt;
  return **answer_;
}

std::optional<Assignment> Inbox::AwaitAssignment(Sequence last) {
  MutexLock lock(mu_);
  Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Replaced(last) || ended_;
  });
  if (!Replaced(last)) return std::nullopt;
  return newest_;
}

Inbox::Told Inbox::AwaitVerdict(const PushKey& key) {
  MutexLock lock(mu_);
  Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return verdicts_.contains(key) || ended_;
  });
  return verdicts_.contains(key) ? Told::kMessage : Told::kEnded;
}

Inbox::Told Inbox::AwaitReduced(const ReduceKey& key, Sequence sequence,
                                Moments& result) {
  MutexLock lock(mu_);
  Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return results_.contains(key) || Replaced(sequence) || ended_;
  });
  const auto found = results_.extract(key);
  if (found.empty()) return ended_ ? Told::kEnded : Told::kNewAssignment;
  result = found.mapped();
  return Told::kMessage;
}

Inbox::Told Inbox::AwaitResumed(Sequence sequence) {
  MutexLock lock(mu_);
  Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return resumed_ > resumed_seen_ || Replaced(sequence) || ended_;
  });
  const bool resumed = resumed_ > resumed_seen_;
  resumed_seen_ = resumed_;
  if (resumed) return Told::kMessage;
  return ended_ ? Told::kEnded : Told::kNewAssignment;
}

void ThreadWorker::Run() {
  for (bool over = false; !over;) {
    over = Live();
    // As an adapter does when its stream is gone.
    for (const Stream* stream :
         {static_cast<const Stream*>(session_stream_.get()),
          static_cast<const Stream*>(exchange_.get()),
          static_cast<const Stream*>(reduce_.get())}) {
      run_.partitions().streams().Forget(stream);
    }
  }
}

absl::Status ThreadWorker::Register() {
  const auto stream = std::make_shared<NotingRegister>(inbox_);
  const ModelLayout layout = ThreadLayout();
  COHORT_RETURN_IF_ERROR(run_.partitions().Admit(run_.partitions().streams(),
                                                 stream, /*speaks=*/false));
  COHORT_RETURN_IF_ERROR(run_.BeginRegister(sender_, layout, plan_, stream));
  const std::optional<RegisterAnswer> answer = inbox_->AwaitAnswer();
  if (!answer.has_value()) return absl::UnavailableError("no answer");
  partitions_ = answer->partitions;
  if (!answer->send_values) return absl::OkStatus();
  std::vector<SharedFloats> values;
  for (const Partition& partition : partitions_) {
    auto buffer = std::make_shared<FloatBuffer>(partition.elements);
    std::fill_n(buffer->data(), partition.elements, 1.0F);
    values.push_back(std::move(buffer));
  }
  return run_.FinishRegister(sender_, layout, plan_, std::move(values), {})
      .status();
}

bool ThreadWorker::Live() {
  inbox_ = std::make_shared<Inbox>();
  session_stream_ = std::make_shared<NotingSession>(inbox_);
  exchange_ = std::make_shared<NotingExchange>(inbox_);
  reduce_ = std::make_shared<NotingReduce>(inbox_);
  const SessionId admitted = OkValue(run_.AdmitSession(session_stream_));
  session_ = admitted;
  ExpectOk(run_.partitions().Admit(run_.partitions().streams(), exchange_,
                                   /*speaks=*/false));
  ExpectOk(run_.partitions().Admit(run_.partitions().streams(), reduce_,
                                   /*speaks=*/false));
  const absl::Status joined = run_.Join(session_, {.rank = rank_,
                                                   .batch_size = 1,
                                                   .fingerprint = "same",
                                                   .description = "thread"});
  EXPECT_TRUE(joined.ok()) << joined;
  sender_ = {.run_id = run_.facts().run_id,
             .rank = rank_,
             .incarnation = inbox_->AwaitJoined()};
  const absl::Status registered = Register();
  EXPECT_TRUE(registered.ok()) << registered;
  if (!joined.ok() || !registered.ok()) return true;
  Sequence last;
  for (;;) {
    const std::optional<Assignment> next = inbox_->AwaitAssignment(last);
    if (!next.has_value()) return true;
    last = next->sequence;
    switch (next->kind) {
      case AssignmentKind::kFinished:
        run_.Leave(session_, {.reason = "the run is over"});
        return true;
      case AssignmentKind::kEvaluate: {
        const absl::StatusOr<Assignment> after = run_.ReportEvaluation(
            sender_, last,
            {.samples = next->range.size(),
             .loss_sum = 1,
             .loss_weight = static_cast<double>(next->range.size()),
             .labels = next->range.size()});
        if (after.ok()) inbox_->Assigned(*after);
        break;
      }
      case AssignmentKind::kTrain:
        if (sends_old_calls_ && next->version > Version(0)) SendOldCall();
        if (leave_every_ > 0 && ++pushes_ % leave_every_ == 0) {
          if (OpenPush(*next)) SendGradients(*next, 1);
          run_.Leave(session_, {.reason = "told to"});
          return false;
        }
        Train(*next);
        break;
      case AssignmentKind::kWait:
      case AssignmentKind::kCollectMoments:
        break;
    }
  }
}

absl::Status ThreadWorker::Reduce(const Assignment& assignment) {
  const double mean = static_cast<double>(rank_.value());
  for (ReducePhase phase : {ReducePhase::kForward, ReducePhase::kBackward}) {
    const ReduceKey key = {.step = assignment.version,
                           .attempt = assignment.attempt,
                           .place = {.phase = phase}};
    const Moments moments = {.count = 4, .first = {mean, 1}, .second = {0, 4}};
    COHORT_RETURN_IF_ERROR(run_.Reduce(
        sender_, {MomentsMessage{.key = key, .moments = moments}}, reduce_));
    Moments result;
    if (inbox_->AwaitReduced(key, assignment.sequence, result) !=
        Inbox::Told::kMessage) {
      return absl::AbortedError("the step was repeated");
    }
    EXPECT_EQ(result.count,
              4 * static_cast<int64_t>(assignment.members.size()));
  }
  return absl::OkStatus();
}

void ThreadWorker::SendOldCall() {
  const ReduceKey key = {.step = Version(0), .place = {.layer = 1 << 30}};
  ExpectOk(run_.Reduce(
      sender_, {MomentsMessage{.key = key, .moments = {.count = 1}}}, reduce_));
}

bool ThreadWorker::SendGradients(const Assignment& assignment, size_t count) {
  std::vector<int32_t> order = SendOrder(partitions_);
  order.resize(std::min(order.size(), count));
  for (int32_t partition : order) {
    const int64_t elements =
        partitions_[static_cast<size_t>(partition)].elements;
    auto buffer = std::make_shared<FloatBuffer>(elements);
    for (int64_t i = 0; i < elements; ++i) {
      buffer->data()[i] = ThreadGradient(assignment.range, i);
    }
    ReceivedGradient gradient{
        .about = {.partition = partition},
        .bytes = run_.partitions().Counted(RopeOf(buffer))};
    gradient.about.sampled_checksum = gradient.bytes.SampledChecksum();
    const absl::StatusOr<Reading> reading = run_.partitions().Gradient(
        sender_, KeyOf(assignment), std::move(gradient), exchange_);
    if (!reading.ok()) return false;
    EXPECT_EQ(*reading, Reading::kPaused);
    if (inbox_->AwaitResumed(assignment.sequence) != Inbox::Told::kMessage) {
      return false;
    }
  }
  return true;
}

bool ThreadWorker::OpenPush(const Assignment& assignment) {
  const int64_t samples = assignment.range.size();
  return run_
      .Open(sender_, KeyOf(assignment),
            {.version = assignment.version,
             .samples = samples,
             .loss_weight = static_cast<double>(samples)},
            exchange_)
      .ok();
}

bool ThreadWorker::Train(const Assignment& assignment) {
  const PushKey key = KeyOf(assignment);
  const int64_t samples = assignment.range.size();
  if (!OpenPush(assignment)) return false;
  if (assignment.global_normalization && !Reduce(assignment).ok()) return false;
  if (!SendGradients(assignment, partitions_.size())) return false;
  PushClosing closing{.loss_sum = static_cast<double>(samples),
                      .labels = samples,
                      .batch_norm_calls = {1}};
  if (assignment.global_normalization) {
    closing.contributions = 2;
  } else {
    closing.moments = {
        {.moments = {.count = 4, .first = {1, 1}, .second = {0, 4}}}};
  }
  if (!run_.Close(sender_, key, std::move(closing), exchange_).ok()) {
    return false;
  }
  ++closed_;
  if (inbox_->AwaitVerdict(key) == Inbox::Told::kMessage) ++answered_;
  return true;
}

}  // namespace cohort
