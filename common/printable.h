#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// `text` as it can be shown to people: what could move a terminal's cursor,
// start a new line or turn the direction of reading is shown as an escape such
// as \x1b or \u{202e}. These are the control characters (C0, DEL, C1), the line
// separators, the marks and overrides of direction, and bytes that are not
// UTF-8. A backslash stays as it is, so the original cannot be restored.
// Source: Unicode 15, chapter 23; Trojan Source (CVE-2021-42574).
std::string Printable(absl::string_view text);

// Whether Printable changes nothing.
bool IsPrintable(absl::string_view text);

}  // namespace cohort
