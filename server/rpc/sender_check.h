#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/push.h"

namespace cohort {

// Binds a stream to the incarnation that first sent on it: answers are
// addressed by incarnation, so one stream cannot serve two.
// Thread safety: none.
class OneSender {
 public:
  // Errors: InvalidArgument if an earlier message had another sender.
  absl::Status Check(const Sender& sender) {
    if (!first_.has_value()) first_ = sender;
    if (first_->rank == sender.rank &&
        first_->incarnation == sender.incarnation) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("sender: got rank ", sender.rank.value(), " incarnation ",
                     sender.incarnation.value(), ", want rank ",
                     first_->rank.value(), " incarnation ",
                     first_->incarnation.value(), " as before on this stream"));
  }

 private:
  std::optional<Sender> first_;
};

}  // namespace cohort
