#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/model_layout.h"

namespace cohort {

// The registrations that wait for the run's model: who has sent a layout, and
// who has been asked for the initial values. Used until a model is there.
//
// The lowest rank's layout rules and its values are asked for, so that the
// order of arrival never decides where training starts.
class RegistrationBook {
 public:
  struct Entry {
    Incarnation incarnation;
    ModelLayout layout;
    RunPlan plan;
    // The client has closed its side of the stream and can send no values.
    bool closed = false;
  };
  // In rank order.
  using Entries = std::map<Rank, Entry>;

  // A later registration of a rank replaces the earlier one. If that rank had
  // been asked, none is any more: its answer went to a stream that is gone.
  void Add(Rank rank, Entry entry);
  // No-op if there is none. As Add, it withdraws the request for values.
  void Remove(Rank rank);

  const Entries& entries() const { return entries_; }
  bool Contains(Rank rank) const { return entries_.contains(rank); }
  const std::optional<Rank>& asked() const { return asked_; }

  // The client of `rank` can send no values any more. If it was asked for them,
  // its registration is gone. No-op if there is none.
  void NoteClosed(Rank rank);

  // True if a rank is to be asked now: none is, and either `needed` ranks
  // have come or they had come before, and the one that was asked is lost.
  bool Due(int32_t needed) const;
  // Ranks whose model differs from the one that rules, and how. They are
  // removed.
  std::map<Rank, absl::Status> TakeDifferent();
  // The lowest rank that can send its values, which is asked from now on.
  // Absent if there is none.
  std::optional<Rank> AskLowest();

  // The lowest rank's or, while one is asked, that one's. Null if empty.
  const Entries::value_type* Ruling() const;

 private:
  Entries entries_;
  std::optional<Rank> asked_;
  // All had come once; the next one is asked without waiting for all again.
  bool complete_ = false;
};

// Errors: FailedPrecondition naming what differs, the value seen, the value
//   wanted and what to do. `whose` names the model that is wanted, such as
//   "the run's".
absl::Status CheckSameModel(const ModelLayout& layout, const RunPlan& plan,
                            const ModelLayout& wanted_layout,
                            const RunPlan& wanted_plan,
                            const std::string& whose);

}  // namespace cohort
