#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace cohort::sim {

// Virtual time. Events run one after the other in the order of (time, insertion
// number), so that a run depends only on its seed.
class Scheduler {
 public:
  using Event = absl::AnyInvocable<void()>;

  Instant now() const { return now_; }

  void After(absl::Duration delay, Event event) {
    heap_.push_back({now_ + delay, next_++, std::move(event)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  // Not before what `last` says was sent before, which then becomes the time.
  void InOrder(Instant& last, absl::Duration delay, Event event) {
    last = std::max(now_ + delay, last);
    After(last - now_, std::move(event));
  }

  // Runs the earliest event. Returns false if there is none.
  bool RunNext() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.at;
    entry.event();
    return true;
  }

 private:
  struct Entry {
    Instant at;
    int64_t number = 0;
    Event event;
  };
  static bool Later(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.number > b.number;
  }

  // Above zero, because an instant that was never set must not equal the start.
  Instant now_ = absl::Seconds(1000);
  int64_t next_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace cohort::sim
