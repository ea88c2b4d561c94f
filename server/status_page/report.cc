#include "server/status_page/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "server/status/status_json.h"
#include "server/status_page/page_routes.h"

namespace cohort {
namespace {

constexpr absl::string_view kDataMarker = "<!-- DATA -->";

}  // namespace

std::string ReportPage(const RunFigures& figures) {
  const absl::string_view page = EmbeddedContent(kReportPath);
  const size_t at = page.rfind(kDataMarker);
  COHORT_CHECK(at != absl::string_view::npos, "report.html lacks its marker");
  // "</script>" and "<!--" inside the data would end or comment out the
  // script. "<" occurs only in strings, where the escape means the same.
  const std::string data = absl::StrReplaceAll(
      StatusJson(figures, StatusParts::kAll), {{"<", "\\u003c"}});
  return absl::StrCat(page.substr(0, at),
                      "<script type=\"application/json\" id=\"saved-status\">",
                      data, "</script>", page.substr(at + kDataMarker.size()));
}

}  // namespace cohort
