#include <ostream>

#include "common/status_macros.h"
#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

absl::Status RunStatus(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const Overview overview, LookAt(context.server));
  context.io.out << (context.json ? OverviewJson(overview)
                                  : OverviewText(overview, context.io.color));
  return absl::OkStatus();
}

}  // namespace

Verb StatusVerb() {
  return {.name = "status",
          .summary = "shows state, progress, policy and workers of the run",
          .examples = {"cohortctl status"},
          .run = &RunStatus};
}

}  // namespace cohort
