#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Ample for our own files, none of which nests ten deep.
inline constexpr int kJsonNestingMax = 32;

// True if arrays and objects of a JSON text nest deeper than `levels`, whether
// or not the rest of it is JSON. Parsers and writers of JSON that recurse once
// a level would run out of stack, which cannot be caught. Check JSON from a
// file before passing it to them.
bool NestsDeeperThan(absl::string_view json, int levels);

}  // namespace cohort
