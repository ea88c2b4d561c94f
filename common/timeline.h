#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"

namespace cohort {

// A stretch of time in which a process did, or waited for, one thing.
struct Span {
  using Value = std::variant<int64_t, double, std::string>;

  std::string name;
  Instant begin;
  Instant end;
  // The line it is drawn on; empty: that of the calling thread. Spans of one
  // track must nest or follow each other.
  std::string track;
  // What a reader of the timeline wants to know of it.
  std::vector<std::pair<std::string, Value>> facts;
};

// Takes the spans of one process. Passed by pointer; null means that nobody
// wants them, and then nothing is measured for it.
// Thread safety: safe; adding waits for no disk.
class Timeline {
 public:
  virtual ~Timeline() = default;
  // Instants are those of a SteadyClock.
  virtual void Add(Span span) = 0;
};

}  // namespace cohort
