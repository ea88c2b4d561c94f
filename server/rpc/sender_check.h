#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/incarnation_text.h"
#include "common/push.h"
#include "common/security/authenticator.h"
#include "common/status_macros.h"

namespace cohort {

// Checks that a message names a rank that its client may act for.
// Errors: PermissionDenied.
inline absl::Status CheckRank(const Caller& caller, Rank rank) {
  if (!caller.rank.has_value() || *caller.rank == rank.value()) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("sender: got rank ", rank.value(), " from ", caller.name,
                   ", want rank ", *caller.rank));
}

// Binds a stream to the incarnation that first sent on it: answers are
// addressed by incarnation, so one stream cannot serve two.
// Thread safety: none.
class OneSender {
 public:
  // Errors: PermissionDenied if `caller` may not act for the sender's rank;
  //   InvalidArgument if an earlier message had another sender.
  absl::Status Check(const Caller& caller, const Sender& sender) {
    COHORT_RETURN_IF_ERROR(CheckRank(caller, sender.rank));
    if (!first_.has_value()) first_ = sender;
    if (first_->rank == sender.rank &&
        first_->incarnation == sender.incarnation) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "sender: got rank ", sender.rank.value(), " incarnation ",
        IncarnationText(sender.incarnation), ", want rank ",
        first_->rank.value(), " incarnation ",
        IncarnationText(first_->incarnation), " as before on this stream"));
  }

 private:
  std::optional<Sender> first_;
};

}  // namespace cohort
