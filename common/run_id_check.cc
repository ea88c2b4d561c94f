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

absl::Status AsRunGone(const absl::Status& other_run) {
  if (other_run.ok()) return other_run;
  return absl::NotFoundError(
      absl::StrCat(other_run.message(),
                   "; this worker's run is gone, a new worker joins that one"));
}

}  // namespace cohort
