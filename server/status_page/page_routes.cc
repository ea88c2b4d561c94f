#include "server/status_page/page_routes.h"

#include <utility>

#include "common/check.h"
#include "server/status_page/report.h"
#include "server/status_page/status_json.h"

namespace cohort {
namespace {

constexpr absl::string_view kPagePath = "/page.html";
constexpr char kHtmlType[] = "text/html; charset=utf-8";

std::string Owned(absl::string_view text) {
  return std::string(text.data(), text.size());
}

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
    routes[file.path == kPagePath ? "/" : Owned(file.path)] =
        [&file]() -> HttpResponse {
      return {.content_type = Owned(file.content_type),
              .fixed_body = file.content};
    };
  }
  routes[Owned(kReportPath)] = [figures]() -> HttpResponse {
    return {.content_type = kHtmlType, .body = ReportPage(*figures())};
  };
  routes["/status.json"] = [figures = std::move(figures)]() -> HttpResponse {
    return {.content_type = "application/json", .body = StatusJson(*figures())};
  };
  return routes;
}

}  // namespace cohort
