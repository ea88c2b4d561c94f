#include <ostream>

#include "common/status_macros.h"
#include "server/ctl/completion.h"
#include "server/ctl/verb.h"

namespace cohort {

absl::Status RunCompletion(Context& context) {
  const std::string shell = context.words.size() == 1 ? context.words[0] : "";
  COHORT_ASSIGN_OR_RETURN(const std::string script, CompletionScript(shell));
  context.io.out << script;
  return absl::OkStatus();
}

}  // namespace cohort
