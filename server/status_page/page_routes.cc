#include "server/status_page/page_routes.h"

#include <utility>

#include "common/check.h"
#include "server/status_page/status_json.h"
#include "server/status_page/status_tables.h"

namespace cohort {
namespace {

constexpr char kHtmlType[] = "text/html; charset=utf-8";

std::string Owned(absl::string_view text) {
  return std::string(text.data(), text.size());
}

}  // namespace

std::map<std::string, HttpHandler> PageRoutes(
    std::function<SharedFigures()> figures) {
  std::map<std::string, HttpHandler> routes;
  absl::string_view page;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == "/page.html") {
      page = file.content;
      continue;
    }
    routes[Owned(file.path)] = [&file]() -> HttpResponse {
      return {.content_type = Owned(file.content_type),
              .fixed_body = file.content};
    };
  }
  COHORT_CHECK(!page.empty(), "page.html is not embedded");
  routes["/"] = [page, figures]() -> HttpResponse {
    return {.content_type = kHtmlType,
            .body = PageWithTables(page, *figures())};
  };
  routes["/status.json"] = [figures = std::move(figures)]() -> HttpResponse {
    return {.content_type = "application/json", .body = StatusJson(*figures())};
  };
  return routes;
}

}  // namespace cohort
