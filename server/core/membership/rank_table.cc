#include "server/core/membership/rank_table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

absl::string_view StateName(Worker::State state) {
  constexpr absl::string_view kNames[] = {"vacant", "live", "reconnecting"};
  return kNames[static_cast<size_t>(state)];
}

RankTable::RankTable(int32_t size) { Resize(size); }

void RankTable::Resize(int32_t size) {
  // Before the ranks that go take theirs with them.
  const std::vector<Sequence> sequences = next_sequences();
  const auto before = static_cast<int32_t>(workers_.size());
  workers_.resize(static_cast<size_t>(size));
  std::erase_if(sessions_, [size](const auto& entry) {
    return entry.second.value() >= size;
  });
  for (int32_t i = before; i < size; ++i) {
    workers_[static_cast<size_t>(i)].rank = Rank(i);
  }
  RestoreSequences(sequences);
}

std::vector<Sequence> RankTable::next_sequences() const {
  std::vector<Sequence> sequences;
  for (const Worker& worker : workers_) {
    sequences.push_back(worker.work.next_sequence());
  }
  sequences.insert(sequences.end(), forgotten_.begin(), forgotten_.end());
  return sequences;
}

void RankTable::RestoreSequences(const std::vector<Sequence>& next_sequences) {
  forgotten_.clear();
  for (size_t i = 0; i < next_sequences.size(); ++i) {
    if (i < workers_.size()) {
      workers_[i].work.SetNextSequence(next_sequences[i]);
    } else {
      forgotten_.push_back(next_sequences[i]);
    }
  }
}

ShareRule RankTable::ShareRuleOf(const std::vector<int64_t>& weights,
                                 const std::vector<Rank>& members) const {
  ShareRule rule;
  for (const Rank rank : members) {
    if (!weights.empty()) {
      rule.weights.push_back(weights[static_cast<size_t>(rank.value())]);
    }
    rule.batch_sizes_max.push_back((*this)[rank].batch_size_max);
  }
  return rule;
}

void RankTable::BindSession(Worker& worker, SessionId session) {
  sessions_.erase(worker.session);
  worker.session = session;
  sessions_[session] = worker.rank;
}

Worker* RankTable::BySession(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  Worker& worker = (*this)[found->second];
  // A rank that reconnects still has this session, whose stream is broken: late
  // events of that stream must have no effect.
  return worker.state == Worker::State::kLive ? &worker : nullptr;
}

Worker* RankTable::LowestVacant() {
  for (Worker& worker : workers_) {
    if (worker.state == Worker::State::kVacant) return &worker;
  }
  return nullptr;
}

int32_t RankTable::live() const {
  return static_cast<int32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
        return worker.state == Worker::State::kLive;
      }));
}

int32_t RankTable::present() const {
  return static_cast<int32_t>(
      std::count_if(workers_.begin(), workers_.end(),
                    [](const Worker& worker) { return worker.present(); }));
}

void RankTable::Transition(Worker& worker, Worker::State to, Instant now) {
  const bool allowed =
      worker.state != to && !(worker.state == Worker::State::kVacant &&
                              to == Worker::State::kReconnecting);
  COHORT_CHECK(allowed,
               absl::StrCat("rank ", worker.rank.value(), ": ",
                            StateName(worker.state), " to ", StateName(to)));
  // The grace to reconnect begins here.
  if (worker.state == Worker::State::kLive) worker.lost_at = now;
  worker.state = to;
}

}  // namespace cohort
