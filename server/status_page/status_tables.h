#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// The figures as HTML for browsers without JavaScript: the state in a sentence,
// then tables. Every text in it is escaped.
std::string StatusTables(const RunFigures& figures);

// `text` such that it is only text in HTML, in attributes too.
std::string EscapedHtml(absl::string_view text);

// `page` with the tables in place of its marker "<!-- STATUS -->".
std::string PageWithTables(absl::string_view page, const RunFigures& figures);

}  // namespace cohort
