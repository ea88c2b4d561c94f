#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"

namespace cohort {

// A period in which a process did, or waited for, one thing.
struct Span {
  using Value = std::variant<int64_t, double, std::string>;

  std::string name;
  Instant begin;
  Instant end;
  // The line on which the span is drawn; the calling thread's if empty. Spans
  // of one track must nest or follow each other.
  std::string track;
  // Details for readers of the timeline.
  std::vector<std::pair<std::string, Value>> facts;
};

// Receives the spans of one process. Passed by pointer; if it is null, nothing
// is measured.
// Thread safety: safe; Add does not wait for the disk.
class Timeline {
 public:
  virtual ~Timeline() = default;
  // Instants are those of a SteadyClock.
  virtual void Add(Span span) = 0;
};

}  // namespace cohort
