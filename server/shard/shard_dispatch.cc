// How a shard carries out the effects of its core.

#include <map>
#include <optional>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/shard/fault.h"
#include "server/shard/shard.h"

namespace cohort {
namespace {

// For the log line before the end of the process.
const char* EffectName(const Effect& effect) {
  return std::visit([](const auto& one) { return typeid(one).name(); }, effect);
}

}  // namespace

// Carries out effects in their order, outside the lock.
struct Shard::Dispatcher {
  Shard& shard;
  // Consecutive results that are not sent yet: those for one stream go in one
  // message.
  std::map<std::pair<Rank, Incarnation>,
           std::vector<const effect::ReduceResult*>>
      results;

  void SendResults() {
    if (results.empty()) return;
    const Instant now = shard.clock_.Now();
    EncodedResults encoded;
    for (const auto& [to, answers] : results) {
      for (const effect::ReduceResult* result : answers) {
        if (shard.trace_ != nullptr) {
          shard.trace_->Answered(result->key, result->rank, now);
        }
      }
      const auto stream = shard.streams_.Reduce(to.first, to.second);
      if (stream == nullptr) continue;
      const absl::Status told =
          ServePeer([&stream, &answers = answers, &encoded] {
            stream->SendResults(answers, encoded);
            return absl::OkStatus();
          });
      if (!told.ok()) stream->End(told);
    }
    results.clear();
  }

  void operator()(effect::Joined& joined) const {
    EndAll(shard.streams_.Bind(joined.session, joined.rank, joined.incarnation),
           absl::AbortedError(
               absl::StrCat("rank ", joined.rank.value(),
                            " is now held by a newer process; join again")));
    Tell(shard.streams_.Session(joined.session), &SessionStream::SendJoined,
         std::as_const(joined));
  }
  void operator()(effect::EndSession& end) const {
    if (auto session = shard.streams_.Session(end.session)) {
      session->End(end.status);
    }
    EndAll(shard.streams_.Unbind(end.session),
           absl::AbortedError(
               absl::StrCat("the session is over: ", end.status.message())));
  }
  void operator()(effect::Notify& notify) const {
    Tell(shard.streams_.Session(notify.session), &SessionStream::SendAssignment,
         std::as_const(notify.assignment));
  }
  void operator()(effect::StepAborted& aborted) const {
    Tell(shard.streams_.Session(aborted.session),
         &SessionStream::SendStepAborted, std::as_const(aborted));
  }
  void operator()(effect::RegisterAnswered& answered) const {
    Tell(shard.streams_.Register(answered.rank, answered.incarnation),
         &RegisterStream::SendAnswer, std::as_const(answered.answer));
  }
  void operator()(effect::ReduceResult& result) {
    results[{result.rank, result.incarnation}].push_back(&result);
  }
  void operator()(effect::ReduceAborted& aborted) const {
    Tell(shard.streams_.Reduce(aborted.rank, aborted.incarnation),
         &ReduceStream::SendAborted, std::as_const(aborted));
  }
  void operator()(effect::SendWeights& weights) const {
    const auto stream =
        shard.streams_.Exchange(weights.rank, weights.incarnation);
    if (stream == nullptr) return;
    const int64_t change = weights.change.size_bytes();
    if (change > 0) {
      ServiceCounters::Add(shard.counters_.pull_bytes_bfloat16, change);
    } else {
      ServiceCounters::Add(
          shard.counters_.pull_bytes_float32,
          weights.weights->size() * static_cast<int64_t>(sizeof(float)));
    }
    Tell(stream, &ExchangeStream::SendWeights, std::as_const(weights));
  }
  void operator()(effect::SendVerdict& verdict) const {
    Tell(shard.streams_.Exchange(verdict.rank, verdict.incarnation),
         &ExchangeStream::SendVerdict, std::as_const(verdict));
  }
  void operator()(effect::ResumeGradients& resume) const {
    Tell(shard.streams_.Exchange(resume.rank, resume.incarnation),
         &ExchangeStream::Resume, std::as_const(resume));
    if (shard.shards() > 1) shard.OfferRemote(resume.rank);
  }
  // For the data shards only.
  void operator()(effect::GradientTaken&) const {}
  void operator()(effect::InstallModel&) const {}
  void operator()(effect::HoldGradient& hold) const {
    shard.FoldWith([&hold](DataShard& data) {
      return data.Hold(std::move(hold.gradient));
    });
  }
  void operator()(effect::DropGradients& drop) const {
    // Declared before the lock, and so destroyed after it is released; the same
    // below.
    std::vector<HeldGradient> dropped;
    MutexLock lock(shard.data_mu_);
    dropped = shard.data_.Drop(drop.push);
  }
  void operator()(effect::Prepare& prepare) const {
    shard.FoldWith([&prepare](DataShard& data) {
      return data.Prepare(std::move(prepare.plan));
    });
  }
  void operator()(effect::Scale& scale) const {
    shard.FoldWith(
        [&scale](DataShard& data) { return data.Scale(scale.scales); });
  }
  void operator()(effect::Commit& commit) const {
    shard.NoteCommit(commit);
    std::optional<Transaction> over;
    MutexLock lock(shard.data_mu_);
    over = shard.data_.Commit(commit.transaction);
  }
  void operator()(effect::Abort& abort) const {
    std::optional<Transaction> over;
    MutexLock lock(shard.data_mu_);
    over = shard.data_.Abort(abort.transaction);
  }
  void operator()(effect::FoldMoments& fold) const {
    shard.StartFold(std::move(fold.job));
  }
  void operator()(effect::UpdateStatistics& update) const {
    shard.StartUpdate(std::move(update.job));
  }
  void operator()(effect::MeasureDrift& measure) const {
    shard.StartMeasuring(std::move(measure));
  }
  void operator()(effect::Discard& discard) const { discard.what.reset(); }
  void operator()(effect::Committed& committed) const {
    if (shard.trace_ != nullptr) {
      shard.trace_->Committed(committed.record, shard.clock_.Now());
    }
    shard.listener_.OnCommitted(committed.record, committed.observation);
  }
  void operator()(effect::PolicyChanged& changed) const {
    if (changed.record.changed.contains("workers")) {
      const int32_t workers = shard.options().workers;
      shard.streams_.SetLimits(StreamRegistry::LimitsOf(workers));
      shard.pulls_.SetLimits(PullTable::LimitsOf(workers));
    }
    shard.listener_.OnPolicyChanged(changed.record);
  }
  void operator()(effect::Evaluated& evaluated) const {
    shard.listener_.OnEvaluated(evaluated.record);
  }
  void operator()(effect::WriteCheckpoint& write) const {
    if (write.awaited) {
      shard.listener_.OnMilestone(std::move(write.state));
    } else {
      shard.listener_.OnCheckpoint(std::move(write.state));
    }
  }
  void operator()(effect::Log& log) const { shard.listener_.OnLogged(log); }
  void operator()(effect::RunEnded& ended) const {
    shard.listener_.OnEnded(ended);
  }
};

void Shard::DispatchAll() {
  bool early = false;
  {
    MutexLock lock(mu_);
    early = !started_;
    if (dispatching_ || (early && outbox_.empty())) return;
    dispatching_ = !early;
  }
  if (early) return listener_.OnChangedBeforeStart();
  for (;;) {
    Effects batch;
    {
      MutexLock lock(mu_);
      if (stopped_) outbox_.clear();
      if (outbox_.empty()) {
        dispatching_ = false;
        dispatched_.NotifyAll();
        return;
      }
      batch.swap(outbox_);
    }
    // A lost effect would leave the run and its workers inconsistent for good,
    // and dispatching_ set; so an exception ends the process.
    Dispatcher dispatcher{.shard = *this};
    for (Effect& effect : batch) {
      AllOrExit(EffectName(effect), [this, &dispatcher, &effect] {
        if (!std::holds_alternative<effect::ReduceResult>(effect)) {
          dispatcher.SendResults();
        }
        std::vector<ShardCommands::Command> commands = CommandsOf(effect);
        if (!commands_.IsElsewhere(effect)) std::visit(dispatcher, effect);
        // Last: they may answer at once, for a transaction that has begun here.
        SendToShards(std::move(commands));
      });
    }
    AllOrExit("reduce result", [&dispatcher] { dispatcher.SendResults(); });
  }
}

}  // namespace cohort
