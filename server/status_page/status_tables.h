#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// The figures as HTML for browsers without JavaScript: one sentence with the
// state, then tables. All text in it is escaped.
std::string StatusTables(const RunFigures& figures);

// `text` escaped for HTML, including attributes.
std::string EscapedHtml(absl::string_view text);

// `page` with its marker "<!-- STATUS -->" replaced by the tables.
std::string PageWithTables(absl::string_view page, const RunFigures& figures);

}  // namespace cohort
