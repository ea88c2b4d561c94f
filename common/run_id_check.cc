#include "common/run_id_check.h"

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status OtherRunError(absl::string_view got, absl::string_view want,
                           absl::string_view where) {
  return absl::FailedPreconditionError(
      absl::StrCat(where, "got run ", got, ", want ", want,
                   ": this server holds another run"));
}

absl::Status CheckRunId(absl::string_view got, absl::string_view want,
                        absl::string_view where) {
  if (got.empty() || got == want) return absl::OkStatus();
  return OtherRunError(got, want, where);
}

}  // namespace cohort
