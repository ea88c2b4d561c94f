#include <ostream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

absl::Status RunLogLevel(Context& context) {
  if (context.words.size() > 1) {
    return absl::NotFoundError(
        absl::StrCat("got ", context.words.size(),
                     " words, want one level or none\n`cohortctl help log "
                     "level` lists them"));
  }
  v1::SetLogLevelRequest request;
  if (!context.words.empty()) request.set_level(context.words.front());
  const absl::StatusOr<v1::SetLogLevelReply> reply =
      context.server.SetLogLevel(request);
  COHORT_RETURN_IF_ERROR(reply.status());
  if (context.json) {
    context.io.out << JsonLine(
        {{"level", reply->level()}, {"previous", reply->previous()}});
  } else if (context.words.empty()) {
    context.io.out << "log level " << reply->level() << "\n";
  } else {
    context.io.out << "log level " << reply->previous() << " -> "
                   << reply->level() << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

Verb LogLevelVerb() {
  return {.name = "log level",
          .summary = "shows or changes the server's log level",
          .words = "[debug|info|warning|error]",
          .examples = {"cohortctl log level", "cohortctl log level debug"},
          .run = &RunLogLevel};
}

}  // namespace cohort
