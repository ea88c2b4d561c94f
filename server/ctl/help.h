#pragma once

#include <string>

#include "server/ctl/verb.h"

namespace cohort {

// What cohortctl says without arguments: two examples and the verbs.
std::string ShortHelp();
// Also the flags that all verbs have, and exit codes.
std::string FullHelp();
std::string VerbHelp(const Verb& verb);

}  // namespace cohort
