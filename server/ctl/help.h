#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/ctl/verb.h"

namespace cohort {

// The output of cohortctl without arguments: two examples and the verbs.
std::string ShortHelp();
// Like ShortHelp, with the flags that all verbs have, and exit codes.
std::string FullHelp();
// The verbs that begin with this word; empty if there are none.
std::string GroupHelp(absl::string_view noun);
std::string VerbHelp(const Verb& verb);

}  // namespace cohort
