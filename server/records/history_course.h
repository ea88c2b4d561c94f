#pragma once

#include <string>
#include <vector>

#include "common/ids.h"
#include "server/metrics/run_tally.h"

namespace cohort {

// First line of history.csv, with its newline.
extern const char kHistoryHeader[];

// Reads the rows of history.csv, up to the version that the run continues
// from. Rows of other releases are passed over.
//
// The last commits before that version may be in no row yet; the time that they
// took is estimated from the rows before them.
EarlierCourse CourseOf(const std::vector<std::string>& rows, Version restored);

}  // namespace cohort
