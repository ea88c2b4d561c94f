#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// `text` without what looks like a secret: the value behind a name such as
// "token=" or "password:", that of an Authorization header, and the password
// of an address such as http://user:password@host. Each is told as
// "[redacted]". A guess by names: it does not know what a secret looks like.
std::string Redacted(absl::string_view text);

// The variables COHORT_* of an environment, one a line, sorted; without the
// value where the name or the value speaks of a secret.
std::string RedactedVariables(absl::Span<const std::string> environment);

}  // namespace cohort
