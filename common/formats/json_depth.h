#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Ample for every file of ours, none of which nests ten deep.
inline constexpr int kJsonNestingMax = 32;

// True if arrays and objects of a JSON text nest deeper than `levels`, whether
// or not the rest of it is JSON. Parsers and writers of JSON that call
// themselves for each level would run out of stack, which nothing can catch;
// look at what comes from a file before it is handed to them.
bool NestsDeeperThan(absl::string_view json, int levels);

}  // namespace cohort
