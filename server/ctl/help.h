#pragma once

#include <string>

#include "server/ctl/verb.h"

namespace cohort {

// The output of cohortctl without arguments: two examples and the verbs.
std::string ShortHelp();
// Like ShortHelp, with the flags that all verbs have, and exit codes.
std::string FullHelp();
std::string VerbHelp(const Verb& verb);

}  // namespace cohort
