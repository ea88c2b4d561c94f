#include "server/shard/pull_table.h"

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

bool PullTable::Holds(Version version) const {
  return std::any_of(pulls_.begin(), pulls_.end(), [version](const auto& e) {
    return e.second.version == version;
  });
}

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
  std::erase_if(pulls_, [&](const auto& entry) {
    if (entry.second.version != stalest->first) return false;
    evicted.push_back(entry.second.stream);
    return true;
  });
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
  pulls_.erase(stalest);
  return true;
}

absl::Status PullTable::Admit(const std::shared_ptr<Stream>& pull,
                              const std::string& peer, Version version,
                              Instant now, StreamRegistry::Streams& evicted) {
  MutexLock lock(mu_);
  const auto of_peer =
      std::count_if(pulls_.begin(), pulls_.end(), [&peer](const auto& entry) {
        return !peer.empty() && entry.second.peer == peer;
      });
  if (of_peer >= limits_.pulls_per_peer) {
    return TooMany("pulls on one connection", limits_.pulls_per_peer);
  }
  if (!Holds(version) &&
      Versions().size() >= static_cast<size_t>(limits_.versions) &&
      !EvictVersion(now, evicted)) {
    return TooMany("versions being pulled", limits_.versions);
  }
  if (pulls_.size() >= static_cast<size_t>(limits_.pulls) &&
      !EvictPull(now, evicted)) {
    return TooMany("pulls", limits_.pulls);
  }
  pulls_[pull.get()] = {
      .stream = pull, .peer = peer, .version = version, .progress = now};
  return absl::OkStatus();
}

void PullTable::Progressed(const Stream* pull, Instant now) {
  MutexLock lock(mu_);
  const auto at = pulls_.find(pull);
  if (at != pulls_.end()) at->second.progress = now;
}

void PullTable::Forget(const Stream* pull) {
  // Destroyed after the lock is released.
  std::shared_ptr<Stream> last;
  MutexLock lock(mu_);
  const auto at = pulls_.find(pull);
  if (at == pulls_.end()) return;
  last = std::move(at->second.stream);
  pulls_.erase(at);
}

}  // namespace cohort
