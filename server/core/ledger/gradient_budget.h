#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/settings/options.h"

namespace cohort {

// Counts the bytes of gradients that wait until they are folded, against a
// limit. Two ways lead in:
//
// - A message at a time: the caller asks whether it fits and charges it.
// - A whole push at its opening, where pushes do not depend on each other. A
//   push that began with too little room for its end would keep what it has and
//   wait for ever. Reservations are granted first come, first served, so a
//   large push is not overtaken for ever either.
class GradientBudget {
 public:
  explicit GradientBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  int64_t limit_bytes() const { return limit_bytes_; }
  // Charged and reserved.
  int64_t inflight_bytes() const { return charged_bytes_ + reserved_bytes_; }

  bool Fits(int64_t bytes) const {
    return bytes <= limit_bytes_ - inflight_bytes();
  }
  // The caller decides: what must get in is charged over the limit.
  void Charge(int64_t bytes) { charged_bytes_ += bytes; }
  void Release(int64_t bytes);

  // Charged bytes enter a fold, and are released when it has ended.
  void BeginFold(int64_t bytes) { folding_bytes_ += bytes; }
  void EndFold(int64_t bytes);
  bool folding() const { return folding_bytes_ > 0; }
  // Whether folds of so many bytes are in progress.
  bool Folds(int64_t bytes) const {
    return bytes >= 0 && bytes <= folding_bytes_;
  }

  // Asks for `bytes`, unless `rank` has asked already.
  void Reserve(Rank rank, int64_t bytes);
  // True once the reservation is granted.
  bool HasReserved(Rank rank) const { return granted_.contains(rank); }
  // Gives the reservation back, granted or not.
  void Unreserve(Rank rank);

 private:
  struct Request {
    Rank rank;
    int64_t bytes = 0;
  };

  void Grant();

  const int64_t limit_bytes_;
  int64_t charged_bytes_ = 0;
  int64_t reserved_bytes_ = 0;
  int64_t folding_bytes_ = 0;
  std::map<Rank, int64_t> granted_;
  // In order of their coming.
  std::deque<Request> waiting_;
};

// Bytes of the gradients of one push.
int64_t PushBytes(const ModelLayout& layout);

// Whether pushes of this model fit the limit under the policy of `options`. A
// step that waits for all its members needs no room but for a few partitions.
// Where pushes are let in whole, those that one commit is made of must fit
// together.
// Errors: FailedPrecondition with both sizes and what to do.
absl::Status CheckInflight(const CoordinatorOptions& options,
                           const ModelLayout& layout);

}  // namespace cohort
