#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/formats/trace_merge.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kTraceDefault = "trace.json";

std::string ErrorText(absl::Duration error) {
  if (error < absl::ZeroDuration()) return "wall clocks only";
  return absl::FormatDuration(absl::Trunc(error, absl::Microseconds(1)));
}

std::string MergedJson(const MergedTrace& merged, const std::string& out) {
  Json json = {{"run", merged.run}, {"out", out}, {"processes", Json::array()}};
  for (const MergedProcess& process : merged.processes) {
    const bool known = process.clock_error >= absl::ZeroDuration();
    json["processes"].push_back(
        {{"name", process.name},
         {"spans", process.spans},
         {"clock_error_us",
          known ? Json(absl::ToDoubleMicroseconds(process.clock_error))
                : Json()}});
  }
  return JsonLine(json);
}

absl::Status RunTraceMerge(Context& context) {
  if (context.words.empty()) {
    return absl::NotFoundError(
        "got no files, want those that --trace wrote\n`cohortctl help trace "
        "merge` has an example");
  }
  const std::string out =
      context.arguments.Value("out").value_or(std::string(kTraceDefault));
  absl::StatusOr<MergedTrace> result = MergeTraces(context.words, out);
  // A verb's NotFound would mean that there is no such verb.
  if (absl::IsNotFound(result.status())) {
    return absl::FailedPreconditionError(result.status().message());
  }
  COHORT_ASSIGN_OR_RETURN(const MergedTrace merged, std::move(result));
  if (context.json) {
    context.io.out << MergedJson(merged, out);
    return absl::OkStatus();
  }
  Table table({"process", "spans", "clock off by at most"});
  for (const MergedProcess& process : merged.processes) {
    table.Add({Printable(process.name), absl::StrCat(process.spans),
               ErrorText(process.clock_error)});
  }
  context.io.out << table.ToString(context.io.color);
  context.io.err << out << ": open it in chrome://tracing or ui.perfetto.dev"
                 << std::endl;
  return absl::OkStatus();
}

}  // namespace

Verb TraceMergeVerb() {
  return {.name = "trace merge",
          .summary = "merges the timelines of all processes on one clock",
          .words = "FILE...",
          .flags = {{"out", "FILE",
                     "file for the merged timeline (default trace.json)"}},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl trace merge server.json worker0.json "
                       "worker1.json --out=run.json"},
          .run = &RunTraceMerge};
}

}  // namespace cohort
