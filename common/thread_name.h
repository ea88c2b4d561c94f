#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// Names the calling thread for debuggers and top; the system keeps the first
// 15 characters.
void SetThreadName(absl::string_view name);

// The name of the calling thread; that of the program if it was given none.
std::string ThreadName();

}  // namespace cohort
