#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/worker_report.h"
#include "server/core/events/effects.h"
#include "server/core/ledger/step_shares.h"
#include "server/core/membership/rank_work.h"

namespace cohort {

// The weights that a process of a rank keeps: those that a change to version
// `next` is added to.
struct WorkerWeights {
  Incarnation incarnation;
  Version next;

  friend bool operator==(const WorkerWeights&, const WorkerWeights&) = default;
};

// One rank of the cohort, over all its incarnations.
struct Worker {
  enum class State {
    // No worker holds the rank.
    kVacant,
    kLive,
    // Its stream broke; the same incarnation may still return.
    kReconnecting,
  };

  Rank rank;

  // ---- its process, as roster and registrar know it
  State state = State::kVacant;
  Incarnation incarnation;
  SessionId session;
  Instant last_heard;
  // When it left kLive.
  Instant lost_at;
  // Since when the run waits for a replacement: the end of the last incarnation
  // that was registered, for one that is refused does not restart the wait; or
  // later, if others continued without it until then.
  Instant missed_since;
  bool ever_joined = false;
  bool registered = false;
  // It has once taken part, and under `wait` is waited for.
  bool ever_registered = false;
  // It was there when the run ended, and has left since.
  bool finished = false;
  // Why its present incarnation leaves after what it is at; absent: it stays.
  std::optional<std::string> leaves_because;
  int64_t batch_size = 0;
  // The most samples that it takes in one batch; 0: no limit.
  int64_t batch_size_max = 0;
  // The newest of each part, from its present incarnation.
  WorkerReport report;
  std::string fingerprint;
  std::string description;
  // Version and commit of its program.
  std::string build;

  // ---- what it was given
  RankWork work;

  // ---- its pushes, as the step driver knows them
  // From its newest opening; absent: it takes no changes.
  std::optional<WorkerWeights> kept_weights;
  // Its newest opening asks for the moving statistics.
  bool takes_statistics = false;
  // Pushes that were decided.
  int64_t pushes = 0;

  WorkerProcess process() const {
    return {.rank = rank, .incarnation = incarnation};
  }
  bool present() const { return state != State::kVacant && registered; }
  bool usable() const { return state == State::kLive && registered; }
  // Under `wait` a replacement computes its share. One that was lost while the
  // cohort was elastic has none, until another worker takes its place.
  bool keeps_share() const { return ever_registered && batch_size > 0; }
};

absl::string_view StateName(Worker::State state);

// The ranks 0..size-1. All changes of state go through Transition.
class RankTable {
 public:
  explicit RankTable(int32_t size);

  // New ranks are vacant. Those beyond `size` are forgotten but for the
  // numbers of their assignments, with which a rank that comes again continues.
  // References to workers are invalid afterwards.
  void Resize(int32_t size);

  int32_t size() const { return static_cast<int32_t>(workers_.size()); }
  bool Contains(Rank rank) const {
    return rank.value() >= 0 && rank.value() < size();
  }
  Worker& operator[](Rank rank) {
    return workers_[static_cast<size_t>(rank.value())];
  }
  const Worker& operator[](Rank rank) const {
    return workers_[static_cast<size_t>(rank.value())];
  }
  std::vector<Worker>& all() { return workers_; }
  const std::vector<Worker>& all() const { return workers_; }

  // From now on `worker` is found by this session, and no longer by its last.
  void BindSession(Worker& worker, SessionId session);
  // Null if no live worker has this session.
  Worker* BySession(SessionId session);
  Worker* LowestVacant();
  // The ranks whose workers are such, ascending.
  template <typename Predicate>
  std::vector<Rank> Where(Predicate is) const {
    std::vector<Rank> ranks;
    for (const Worker& worker : workers_) {
      if (is(worker)) ranks.push_back(worker.rank);
    }
    return ranks;
  }
  std::vector<Rank> Usable() const {
    return Where([](const Worker& worker) { return worker.usable(); });
  }
  // Ranks that were given something that has not ended.
  std::vector<Rank> InFlight() const {
    return Where([](const Worker& worker) { return worker.work.busy(); });
  }
  // The division of a step among `members`: the weights of their ranks, or
  // none, and the most that they take.
  ShareRule ShareRuleOf(const std::vector<int64_t>& weights,
                        const std::vector<Rank>& members) const;
  int32_t live() const;
  // Workers that take part in training: registered, and not known to be lost.
  int32_t present() const;

  // By rank: the numbers of the next assignments, forgotten ranks included.
  std::vector<Sequence> next_sequences() const;
  void RestoreSequences(const std::vector<Sequence>& next_sequences);

  // Allowed: kVacant -> kLive, kLive <-> kReconnecting, either -> kVacant.
  void Transition(Worker& worker, Worker::State to, Instant now);

 private:
  std::vector<Worker> workers_;
  std::map<SessionId, Rank> sessions_;
  // Next assignments of the forgotten ranks, from `size` on.
  std::vector<Sequence> forgotten_;
};

}  // namespace cohort
