#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// Names the calling thread for debuggers and top. Only the first 15 characters
// are used.
void SetThreadName(absl::string_view name);

// The name of the calling thread; the program's name if none was set.
std::string ThreadName();

}  // namespace cohort
