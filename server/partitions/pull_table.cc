#include "server/partitions/pull_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

absl::Status TooMany(absl::string_view what, int64_t max) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "pull: got too many ", what, ", want at most ", max,
      "; read the answers of the pulls in progress and try again"));
}

}  // namespace

std::map<Version, Instant> PullTable::Versions() const {
  std::map<Version, Instant> newest;
  for (const auto& [key, pull] : pulls_) {
    const auto [at, first] = newest.try_emplace(pull.version, pull.progress);
    if (!first) at->second = std::max(at->second, pull.progress);
  }
  return newest;
}

bool PullTable::EvictVersion(Instant now, StreamRegistry::Streams& evicted) {
  const std::map<Version, Instant> versions = Versions();
  const auto stalest = std::min_element(
      versions.begin(), versions.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (stalest == versions.end() ||
      now - stalest->second < limits_.stalled_after) {
    return false;
  }
  for (auto at = pulls_.begin(); at != pulls_.end();) {
    if (at->second.version != stalest->first) {
      ++at;
      continue;
    }
    evicted.push_back(at->second.stream);
    at = Erase(at);
  }
  return true;
}

bool PullTable::EvictPull(Instant now, StreamRegistry::Streams& evicted) {
  const auto stalest = std::min_element(
      pulls_.begin(), pulls_.end(), [](const auto& a, const auto& b) {
        return a.second.progress < b.second.progress;
      });
  if (stalest == pulls_.end() ||
      now - stalest->second.progress < limits_.stalled_after) {
    return false;
  }
  evicted.push_back(stalest->second.stream);
  Erase(stalest);
  return true;
}

PullTable::Pulls::iterator PullTable::Erase(Pulls::iterator pull) {
  const auto uncount = [](auto& counts, const auto& of) {
    const auto at = counts.find(of);
    if (--at->second == 0) counts.erase(at);
  };
  EndTurn(pull->second);
  uncount(of_peer_, pull->second.peer);
  uncount(of_version_, pull->second.version);
  return pulls_.erase(pull);
}

void PullTable::EndTurn(Pull& pull) {
  if (pull.waits_since.has_value()) {
    waiting_.erase(pull.number);
    waiting_since_.erase({*pull.waits_since, pull.number});
    pull.waits_since.reset();
  }
  if (pull.sends_since.has_value()) {
    sending_since_.erase({*pull.sends_since, pull.number});
    pull.sends_since.reset();
  }
}

PullTable::Turns PullTable::GiveTurns(Instant now) {
  while (!sending_since_.empty() &&
         now - sending_since_.begin()->first.first >= limits_.stalled_after) {
    EndTurn(*sending_since_.begin()->second);
  }
  Turns turns;
  while (!waiting_.empty() &&
         sending_since_.size() < static_cast<size_t>(limits_.turns)) {
    const auto longest = waiting_since_.begin();
    Pull& next = now - longest->first.first >= limits_.long_wait
                     ? *longest->second
                     : *waiting_.begin()->second;
    EndTurn(next);
    next.sends_since = now;
    sending_since_[{now, next.number}] = &next;
    turns.push_back(next.stream);
  }
  return turns;
}

void PullTable::SetLimits(Limits limits) {
  MutexLock lock(mu_);
  limits_ = limits;
}

absl::Status PullTable::Admit(const std::shared_ptr<PullStream>& pull,
                              const std::string& peer, Version version,
                              Instant now, StreamRegistry::Streams& evicted) {
  MutexLock lock(mu_);
  const auto of_peer = of_peer_.find(peer);
  if (!peer.empty() && of_peer != of_peer_.end() &&
      of_peer->second >= limits_.pulls_per_peer) {
    return TooMany("pulls on one connection", limits_.pulls_per_peer);
  }
  if (!of_version_.contains(version) &&
      of_version_.size() >= static_cast<size_t>(limits_.versions) &&
      !EvictVersion(now, evicted)) {
    return TooMany("versions being pulled", limits_.versions);
  }
  if (pulls_.size() >= static_cast<size_t>(limits_.pulls) &&
      !EvictPull(now, evicted)) {
    return TooMany("pulls", limits_.pulls);
  }
  pulls_[pull.get()] = {.number = next_number_++,
                        .stream = pull,
                        .peer = peer,
                        .version = version,
                        .progress = now};
  ++of_peer_[peer];
  ++of_version_[version];
  return absl::OkStatus();
}

PullTable::Turns PullTable::Await(const Stream* pull, Instant now) {
  MutexLock lock(mu_);
  const auto at = pulls_.find(pull);
  // It has lost its place and is about to end.
  if (at == pulls_.end()) return {};
  Pull& asking = at->second;
  EndTurn(asking);
  asking.progress = now;
  asking.waits_since = now;
  waiting_[asking.number] = &asking;
  waiting_since_[{now, asking.number}] = &asking;
  return GiveTurns(now);
}

PullTable::Turns PullTable::Forget(const Stream* pull, Instant now) {
  // Destroyed after the lock is released.
  std::shared_ptr<Stream> last;
  MutexLock lock(mu_);
  const auto at = pulls_.find(pull);
  if (at != pulls_.end()) {
    last = at->second.stream;
    Erase(at);
  }
  return GiveTurns(now);
}

PullTable::Turns PullTable::Tick(Instant now) {
  MutexLock lock(mu_);
  return GiveTurns(now);
}

}  // namespace cohort
