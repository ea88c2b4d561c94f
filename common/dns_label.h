#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Checks whether `text` is a valid label of a domain name: 1 to 63 of a-z, 0-9
// and -, with no hyphen at either end. Valid names are used unchanged in
// certificates, host names and Kubernetes object names.
// Source: RFC 1123, section 2.1, in lower case as Kubernetes requires.
// Errors: InvalidArgument that begins with `field` and contains the value seen.
absl::Status CheckDnsLabel(absl::string_view field, absl::string_view text);

}  // namespace cohort
