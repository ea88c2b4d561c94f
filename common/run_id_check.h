#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The error for a message of run `got` that reached a server of run `want`, or
// the other way round. `where`, such as "join: ", begins the message and may be
// empty.
// Returns FailedPrecondition.
absl::Status OtherRunError(absl::string_view got, absl::string_view want,
                           absl::string_view where = "");

// Checks a request to a server that holds run `want`. An empty `got` means
// whichever run the server holds.
// Errors: OtherRunError.
absl::Status CheckRunId(absl::string_view got, absl::string_view want,
                        absl::string_view where = "");

// Such an error for a worker that joined a run before: its server was replaced
// by one without that run's checkpoint. The same process cannot resume, but one
// that is started again can. OK stays OK.
// Errors: NotFound.
absl::Status AsRunGone(const absl::Status& other_run);

}  // namespace cohort
