#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Names the calling thread for debuggers and top; the system keeps the first
// 15 characters.
void SetThreadName(absl::string_view name);

}  // namespace cohort
