#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/moments.h"
#include "common/mutex.h"
#include "worker/batch_norm/rendezvous.h"

namespace cohort {

// The rendezvous of one step among threads of this process: every call waits
// until all ranks have contributed and is answered with their moments, folded
// in rank order. Implemented independently, so that it shares no mistake with
// the server's fold.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(size_t workers) : workers_(workers) {
    for (size_t rank = 0; rank < workers; ++rank) {
      members_.push_back(std::make_unique<Member>(*this, rank));
    }
  }

  // The rendezvous that `rank` uses; lives as long as this object.
  Rendezvous& OfRank(size_t rank) { return *members_[rank]; }

 private:
  using Key = CallPlace;
  struct Slot {
    std::vector<std::optional<Moments>> parts;
    size_t present = 0;
  };

  class Member final : public Rendezvous {
   public:
    Member(ThreadRendezvous& all, size_t rank) : all_(all), rank_(rank) {}
    absl::StatusOr<std::vector<Moments>> Reduce(
        absl::Span<const Contribution> local) override {
      std::vector<Moments> results;
      for (const Contribution& of : local) {
        results.push_back(all_.Contribute(of.place, rank_, of.moments));
      }
      return results;
    }

   private:
    ThreadRendezvous& all_;
    const size_t rank_;
  };

  Moments Contribute(const Key& key, size_t rank, const Moments& local) {
    MutexLock lock(mu_);
    Slot& slot = slots_[key];
    slot.parts.resize(workers_);
    slot.parts[rank] = local;
    ++slot.present;
    complete_.NotifyAll();
    while (slot.present < workers_) complete_.Wait(mu_);
    Moments folded = *slot.parts[0];
    for (size_t k = 1; k < workers_; ++k) {
      folded = key.phase == ReducePhase::kForward
                   ? Combine(folded, *slot.parts[k])
                   : Add(folded, *slot.parts[k]);
    }
    return folded;
  }

  // Chan, Golub, LeVeque 1983, formula 2.1.
  static Moments Combine(const Moments& a, const Moments& b) {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    Moments both = a;
    both.count = a.count + b.count;
    const auto n = static_cast<double>(both.count);
    const auto na = static_cast<double>(a.count);
    const auto nb = static_cast<double>(b.count);
    for (size_t c = 0; c < a.first.size(); ++c) {
      const double delta = b.first[c] - a.first[c];
      both.first[c] = a.first[c] + delta * nb / n;
      both.second[c] = a.second[c] + b.second[c] + delta * delta * na * nb / n;
    }
    return both;
  }

  static Moments Add(const Moments& a, const Moments& b) {
    Moments both = a;
    both.count += b.count;
    for (size_t c = 0; c < a.first.size(); ++c) {
      both.first[c] += b.first[c];
      both.second[c] += b.second[c];
    }
    return both;
  }

  const size_t workers_;
  std::vector<std::unique_ptr<Member>> members_;
  Mutex mu_;
  CondVar complete_;
  std::map<Key, Slot> slots_ ABSL_GUARDED_BY(mu_);
};

// Records a worker's calls, and fails those of one phase if a test sets it.
class NotingRendezvous final : public Rendezvous {
 public:
  // Null: a cohort of one.
  explicit NotingRendezvous(Rendezvous* next = nullptr) : next_(next) {}

  absl::StatusOr<std::vector<Moments>> Reduce(
      absl::Span<const Contribution> local) override {
    together.push_back(local.size());
    std::vector<Moments> own;
    for (const Contribution& call : local) {
      const CallPlace& place = call.place;
      keys.emplace_back(place.layer, place.call, place.phase);
      own.push_back(call.moments);
      if (place.phase != ReducePhase::kForward) continue;
      forward.push_back(
          {.layer = place.layer, .call = place.call, .moments = call.moments});
    }
    if (fail == local.front().place.phase) {
      return absl::AbortedError("rank 3 is lost");
    }
    if (next_ == nullptr) return own;
    absl::StatusOr<std::vector<Moments>> all = next_->Reduce(local);
    if (all.ok()) combined.insert(combined.end(), all->begin(), all->end());
    return all;
  }

  std::vector<std::tuple<int32_t, int32_t, ReducePhase>> keys;
  std::vector<CallMoments> forward;
  // The contributions of all members, combined.
  std::vector<Moments> combined;
  // Number of contributions in each wait.
  std::vector<size_t> together;
  std::optional<ReducePhase> fail;

 private:
  Rendezvous* const next_;
};

}  // namespace cohort
