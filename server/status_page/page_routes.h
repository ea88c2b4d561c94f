#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/ops/http_server.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// A file that is embedded in the program.
struct EmbeddedFile {
  // The path at which it is served, such as "/page.css".
  absl::string_view path;
  absl::string_view content_type;
  absl::string_view content;
};

// The page's files and Chart.js, generated when the program is built.
const std::vector<EmbeddedFile>& EmbeddedFiles();

// The template of a report, which is not served as it is.
inline constexpr absl::string_view kReportPath = "/report.html";

// The content of the embedded file with that path, which must exist.
absl::string_view EmbeddedContent(absl::string_view path);

// The status with all parts, for which the page asks.
inline constexpr char kPageStatusPath[] = "/status.json?parts=all";

// Handlers for "/", the status, "/report.html" and the embedded files.
// `figures` must never return null.
std::map<std::string, HttpHandler> PageRoutes(
    std::function<SharedFigures()> figures);

}  // namespace cohort
