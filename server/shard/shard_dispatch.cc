// How a shard carries out the effects of its core.

#include <map>
#include <memory>
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

template <typename Command>
void Shard::Send(Command command) {
  const std::vector<int32_t> to = ShardsOf(command, shards());
  for (size_t i = 0; i + 1 < to.size(); ++i) {
    links_[static_cast<size_t>(to[i])]->Send(command);
  }
  links_[static_cast<size_t>(to.back())]->Send(std::move(command));
}

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
        if (shard.host_.trace() != nullptr) {
          shard.host_.trace()->Answered(result->key, result->rank, now);
        }
      }
      const auto stream = shard.streams().Reduce(to.first, to.second);
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
    EndAll(
        shard.streams().Bind(joined.session, joined.rank, joined.incarnation),
        absl::AbortedError(
            absl::StrCat("rank ", joined.rank.value(),
                         " is now held by a newer process; join again")));
    Tell(shard.streams().Session(joined.session), &SessionStream::SendJoined,
         std::as_const(joined));
  }
  void operator()(effect::EndSession& end) const {
    if (auto session = shard.streams().Session(end.session)) {
      session->End(end.status);
    }
    EndAll(shard.streams().Unbind(end.session),
           absl::AbortedError(
               absl::StrCat("the session is over: ", end.status.message())));
  }
  void operator()(effect::Notify& notify) const {
    Tell(shard.streams().Session(notify.session),
         &SessionStream::SendAssignment, std::as_const(notify.assignment));
  }
  void operator()(effect::StepAborted& aborted) const {
    Tell(shard.streams().Session(aborted.session),
         &SessionStream::SendStepAborted, std::as_const(aborted));
  }
  void operator()(effect::RegisterAnswered& answered) const {
    Tell(shard.streams().Register(answered.rank, answered.incarnation),
         &RegisterStream::SendAnswer, std::as_const(answered.answer));
  }
  void operator()(effect::ReduceResult& result) {
    results[{result.rank, result.incarnation}].push_back(&result);
  }
  void operator()(effect::ReduceAborted& aborted) const {
    Tell(shard.streams().Reduce(aborted.rank, aborted.incarnation),
         &ReduceStream::SendAborted, std::as_const(aborted));
  }
  void operator()(effect::SendVerdict& verdict) const {
    Tell(shard.streams().Exchange(verdict.rank, verdict.incarnation),
         &ExchangeStream::SendVerdict, std::as_const(verdict));
  }
  void operator()(effect::ResumeGradients& resume) const {
    shard.Offer(resume.rank);
  }
  void operator()(effect::InstallModel& install) const {
    auto whole = std::make_shared<ModelSnapshot>();
    {
      MutexLock lock(shard.mu_);
      whole->weights = std::exchange(shard.initial_values_, {});
    }
    for (int32_t i = 0; i < shard.shards(); ++i) {
      shard.Install(i, install.model, whole, install.settings);
    }
  }
  void operator()(command::Prepare& prepare) const {
    // Before they can answer.
    if (shard.options_.shard_stats != nullptr) {
      shard.options_.shard_stats->Planned(prepare.plan.transaction);
    }
    shard.Send(std::move(prepare));
  }
  void operator()(command::Commit& commit) const {
    shard.NoteCommit(commit);
    shard.Send(std::move(commit));
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
    if (shard.host_.trace() != nullptr) {
      shard.host_.trace()->Committed(committed.record, shard.clock_.Now());
    }
    shard.listener_.OnCommitted(committed.record, committed.observation);
  }
  void operator()(effect::PolicyChanged& changed) const {
    if (changed.record.changed.contains("workers")) {
      const int32_t workers = shard.options().workers;
      shard.streams().SetLimits(StreamRegistry::LimitsOf(workers));
      shard.pulls().SetLimits(PullTable::LimitsOf(workers));
    }
    if (changed.state.has_value()) {
      changed.state = shard.WithWeights(*std::move(changed.state));
    }
    shard.listener_.OnPolicyChanged(changed.record, std::move(changed.state));
  }
  void operator()(effect::Evaluated& evaluated) const {
    shard.listener_.OnEvaluated(evaluated.record);
  }
  void operator()(effect::WriteCheckpoint& write) const {
    RunState state = shard.WithWeights(std::move(write.state));
    if (write.awaited) {
      shard.listener_.OnMilestone(std::move(state));
    } else {
      shard.listener_.OnCheckpoint(std::move(state));
    }
  }
  void operator()(effect::Log& log) const { shard.listener_.OnLogged(log); }
  void operator()(effect::RunEnded& ended) const {
    shard.listener_.OnEnded(ended, ended.version == nullptr
                                       ? nullptr
                                       : shard.WithWeights(ended.version));
  }
  template <typename Command>
  void operator()(Command& command) const {
    shard.Send(std::move(command));
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
        std::visit(dispatcher, effect);
      });
    }
    AllOrExit("reduce result", [&dispatcher] { dispatcher.SendResults(); });
  }
}

}  // namespace cohort
