#pragma once

#include "cohort/v1/admin.pb.h"
#include "server/metrics/run_figures.h"
#include "server/status/status_json.h"

namespace cohort {

// The status of the run. Fields of the connection and of the server's files
// that the figures do not know are left to the caller.
v1::Status RunStatus(const RunFigures& figures, StatusParts parts);

// The policy without its run.
v1::PolicyChange PolicyChangeStatus(const PolicyRecord& record);
v1::GetPolicyReply PolicyStatus(const PolicyView& policy, StatusParts parts);

}  // namespace cohort
