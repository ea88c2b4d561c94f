#include <ostream>

#include "common/status_macros.h"
#include "server/ctl/completion.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

absl::Status RunCompletion(Context& context) {
  const std::string shell = context.words.size() == 1 ? context.words[0] : "";
  COHORT_ASSIGN_OR_RETURN(const std::string script, CompletionScript(shell));
  context.io.out << script;
  return absl::OkStatus();
}

}  // namespace

Verb CompletionVerb() {
  return {.name = "completion",
          .summary = "prints a completion script for a shell",
          .words = "bash|zsh|fish",
          .contacts = Contacts::kNothing,
          .prints_json = false,
          .examples = {"cohortctl completion bash"},
          .run = &RunCompletion};
}

}  // namespace cohort
