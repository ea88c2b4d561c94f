#include "server/status_page/page_routes.h"

#include <utility>

#include "common/check.h"
#include "server/status/status_json.h"
#include "server/status_page/report.h"

namespace cohort {
namespace {

constexpr absl::string_view kPagePath = "/page.html";
constexpr char kHtmlType[] = "text/html; charset=utf-8";

}  // namespace

absl::string_view EmbeddedContent(absl::string_view path) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == path) return file.content;
  }
  COHORT_CHECK(false, "a file of the page is not embedded");
  return {};
}

std::map<std::string, HttpHandler> PageRoutes(
    std::function<SharedFigures()> figures) {
  std::map<std::string, HttpHandler> routes;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == kReportPath) continue;
    routes[file.path == kPagePath ? "/" : std::string(file.path)] =
        [&file]() -> HttpResponse {
      return {.content_type = std::string(file.content_type),
              .fixed_body = file.content};
    };
  }
  routes[std::string(kReportPath)] = [figures]() -> HttpResponse {
    return {.content_type = kHtmlType, .body = ReportPage(*figures())};
  };
  const auto serve = [figures = std::move(figures)](StatusParts parts) {
    return [figures, parts]() -> HttpResponse {
      return {.content_type = "application/json",
              .body = StatusJson(*figures(), parts)};
    };
  };
  routes["/status.json"] = serve(StatusParts::kNone);
  routes[kPageStatusPath] = serve(StatusParts::kAll);
  return routes;
}

}  // namespace cohort
