#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Whether `text` may stand as one label of a domain name: 1 to 63 of a-z, 0-9
// and -, with no hyphen at either end. Names that may, go into certificates,
// host names and Kubernetes' object names as they are.
// Source: RFC 1123, section 2.1, in lower case as Kubernetes wants it.
// Errors: InvalidArgument that begins with `field` and says what was seen.
absl::Status CheckDnsLabel(absl::string_view field, absl::string_view text);

}  // namespace cohort
