#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// The names of the flags of cohort-server and cohort-worker, sorted. The build
// reads them off the definitions.
absl::Span<const absl::string_view> AllFlagNames();

}  // namespace cohort
