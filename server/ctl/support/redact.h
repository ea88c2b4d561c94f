#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// `text` with apparent secrets replaced by "[redacted]": the value after a name
// such as "token=" or "password:", that of an Authorization header, and the
// password of an address such as http://user:password@host. It guesses by
// names, because it cannot recognise a secret itself.
std::string Redacted(absl::string_view text);

// Why a file must not be given away at all: it holds a private key, or is a
// token. Empty if neither was found.
std::string SecretIn(absl::string_view text);

// The variables COHORT_* of an environment, one a line, sorted; without the
// value if the name or the value suggests a secret.
std::string RedactedVariables(absl::Span<const std::string> environment);

}  // namespace cohort
