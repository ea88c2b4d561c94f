#include "common/formats/trace_merge.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/byte_rope.h"
#include "common/formats/file_system.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFileMode = 0644;

// The timeline that one process wrote.
struct Trace {
  std::string path;
  std::vector<Json> events;
  std::string name;
  std::string process;
  std::string run;
  int64_t rank = -1;
  // The server's clock at time 0, in microseconds since 1970.
  double begin_us = 0;
  double error_us = -1;
  bool has_clock = false;
};

absl::Status Damaged(const Trace& trace, size_t line, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(trace.path, ", line ", line, ": ", why));
}

void ReadClock(const Json& args, Trace& trace) {
  trace.has_clock = true;
  trace.process = args.at("process").get<std::string>();
  trace.run = args.at("run").get<std::string>();
  trace.rank = args.at("rank").get<int64_t>();
  trace.error_us = args.at("server_error_us").get<double>();
  trace.begin_us = args.at("wall_us").get<double>();
  if (trace.error_us >= 0) {
    trace.begin_us += args.at("server_offset_us").get<double>();
  }
}

// Throws a Json::exception if `event` is none.
void TakeEvent(Json event, Trace& trace) {
  const std::string kind = event.at("ph");
  if (kind == "M" && event.at("name") == "cohort_clock") {
    return ReadClock(event.at("args"), trace);
  }
  // A process that learned its rank wrote several; the last one counts.
  if (kind == "M" && event.at("name") == "process_name") {
    trace.name = event.at("args").at("name").get<std::string>();
    return;
  }
  // What MergedText() reads.
  event.at("tid").get<int64_t>();
  if (kind != "M") event.at("ts").get<double>();
  trace.events.push_back(std::move(event));
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const ByteRope content,
                          RealFileSystem().ReadFile(path, kAnyFileSize));
  Trace trace{.path = path};
  const std::string text = content.ToString();
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::string_view line = absl::StripAsciiWhitespace(lines[i]);
    absl::ConsumeSuffix(&line, ",");
    if (line.empty() || line == "[" || line == "]") continue;
    // Events are flat, so deep nesting is damage; the JSON writer recurses once
    // a level.
    if (NestsDeeperThan(line, kJsonNestingMax)) {
      return Damaged(trace, i + 1, "its JSON nests too deeply");
    }
    Json event = Json::parse(line.begin(), line.end(), nullptr,
                             /*allow_exceptions=*/false);
    if (event.is_discarded()) {
      // The line was cut off when the process was killed.
      if (i + 1 == lines.size()) break;
      return Damaged(trace, i + 1, "not valid JSON");
    }
    try {
      TakeEvent(std::move(event), trace);
    } catch (const Json::exception& e) {
      return Damaged(trace, i + 1,
                     absl::StrCat("not a trace event (", e.what(), ")"));
    }
  }
  if (!trace.has_clock) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": got no cohort_clock event, want a file that --trace of "
                     "cohort-server or cohort-worker wrote"));
  }
  return trace;
}

// The run, such as "3f2a", or an error if the traces are of two runs. A worker
// that was refused does not know its run.
absl::StatusOr<std::string> RunOf(const std::vector<Trace>& traces) {
  const Trace* first = nullptr;
  for (const Trace& trace : traces) {
    if (trace.run.empty()) continue;
    if (first == nullptr) first = &trace;
    if (trace.run != first->run) {
      return absl::InvalidArgumentError(
          absl::StrCat(trace.path, ": got run ", trace.run, ", want ",
                       first->run, " as in ", first->path));
    }
  }
  return first == nullptr ? "" : first->run;
}

Json Metadata(const char* name, size_t pid, const Json& args) {
  return {
      {"ph", "M"}, {"name", name}, {"pid", pid}, {"tid", 0}, {"args", args}};
}

// `traces` are in their final order. Process numbers in the files may collide.
std::string MergedText(std::vector<Trace>& traces) {
  double begin_us = std::numeric_limits<double>::infinity();
  for (const Trace& trace : traces) {
    begin_us = std::min(begin_us, trace.begin_us);
  }
  std::vector<Json> events;
  std::vector<std::pair<double, Json>> timed;
  // Tracks get new numbers: viewers take equal numbers for one thread, even in
  // different processes.
  std::map<std::pair<size_t, int64_t>, size_t> tids;
  for (size_t i = 0; i < traces.size(); ++i) {
    Trace& trace = traces[i];
    const size_t pid = i + 1;
    events.push_back(Metadata("process_name", pid, {{"name", trace.name}}));
    events.push_back(Metadata("process_sort_index", pid, {{"sort_index", i}}));
    for (Json& event : trace.events) {
      event["pid"] = pid;
      const int64_t tid = event["tid"].get<int64_t>();
      event["tid"] =
          tids.try_emplace({pid, tid}, tids.size() + 1).first->second;
      if (event["ph"] == "M") {
        events.push_back(std::move(event));
        continue;
      }
      const double ts = event["ts"].get<double>() + (trace.begin_us - begin_us);
      event["ts"] = ts;
      timed.emplace_back(ts, std::move(event));
    }
  }
  std::stable_sort(
      timed.begin(), timed.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [ts, event] : timed) events.push_back(std::move(event));
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
  for (size_t i = 0; i < events.size(); ++i) {
    absl::StrAppend(
        &text, i == 0 ? "\n" : ",\n",
        events[i].dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return absl::StrCat(text, "\n]}\n");
}

// Incarnations of one worker have the same name: the later ones get a number.
void NumberLives(std::vector<Trace>& traces) {
  std::map<std::string, int> lives;
  for (Trace& trace : traces) {
    const int life = ++lives[trace.name];
    if (life > 1) absl::StrAppend(&trace.name, ", process ", life);
  }
}

bool ServerFirst(const Trace& a, const Trace& b) {
  const auto key = [](const Trace& trace) {
    return std::make_tuple(trace.process != "server", trace.process != "shard",
                           trace.rank, trace.begin_us);
  };
  return key(a) < key(b);
}

}  // namespace

absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> files,
                                        const std::string& out) {
  std::vector<Trace> traces;
  for (const std::string& file : files) {
    std::error_code none;
    if (std::filesystem::equivalent(file, out, none)) {
      return absl::InvalidArgumentError(
          absl::StrCat(out, ": got the same file as input and as output"));
    }
    COHORT_ASSIGN_OR_RETURN(Trace trace, ReadTrace(file));
    traces.push_back(std::move(trace));
  }
  COHORT_ASSIGN_OR_RETURN(const std::string run, RunOf(traces));
  std::stable_sort(traces.begin(), traces.end(), ServerFirst);
  NumberLives(traces);
  MergedTrace merged{.run = run};
  for (const Trace& trace : traces) {
    merged.processes.push_back(
        {.name = trace.name,
         .spans = std::count_if(
             trace.events.begin(), trace.events.end(),
             [](const Json& event) { return event["ph"] == "X"; }),
         .clock_error = trace.process == "server"
                            ? absl::ZeroDuration()
                            : absl::Microseconds(trace.error_us)});
  }
  const std::string text = MergedText(traces);
  COHORT_RETURN_IF_ERROR(
      WriteFileAtomically(RealFileSystem(), out, kFileMode, text));
  return merged;
}

}  // namespace cohort
