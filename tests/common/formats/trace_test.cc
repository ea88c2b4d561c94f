#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/clock.h"
#include "common/formats/trace_file.h"
#include "common/formats/trace_merge.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

std::vector<json> Events(const json& all, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : all) {
    if (event.at("ph") == kind) found.push_back(event);
  }
  return found;
}

// A file of one span that begins 100 us after time 0.
std::string Example(const std::string& process, const std::string& run,
                    int rank, int64_t wall_us, int64_t offset_us,
                    int64_t error_us) {
  return absl::StrCat(
      R"([
{"ph":"M","name":"process_name","pid":7,"tid":0,"args":{"name":")",
      process, rank < 0 ? "" : absl::StrCat(" ", rank), R"("}},
{"ph":"M","name":"cohort_clock","pid":7,"tid":0,"args":{"process":")",
      process, R"(","run":")", run, R"(","rank":)", rank, R"(,"wall_us":)",
      wall_us, R"(,"server_offset_us":)", offset_us, R"(,"server_error_us":)",
      error_us, R"(}},
{"ph":"M","name":"thread_name","pid":7,"tid":9,"args":{"name":"main"}},
{"ph":"X","name":"step","pid":7,"tid":9,"ts":100.0,"dur":50.0,"args":{}})");
}

TEST(TraceFileTest, IsAnArrayOfEventsOnceItIsClosed) {
  const TempDir folder;
  const std::string path = folder.File("trace.json");
  const SteadyClock clock;
  {
    auto trace = OkValue(TraceFile::Create(path, "worker"));
    trace->SetIdentity("3f2a", 1);
    trace->SetServerClock(absl::Microseconds(5), absl::Microseconds(9));
    // Less exact than the known value.
    trace->SetServerClock(absl::Microseconds(70), absl::Microseconds(80));
    const Instant begin = clock.Now();
    trace->Add(
        {.name = "step",
         .begin = begin,
         .end = begin + absl::Microseconds(1500),
         .facts = {
             {"version", int64_t{3}}, {"share", 0.5}, {"why", "a \"quote\""}}});
    trace->Add(
        {.name = "apply", .begin = begin, .end = begin, .track = "apply"});
  }
  const json all = json::parse(ReadText(path));
  const std::vector<json> spans = Events(all, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "step");
  EXPECT_NEAR(spans[0].at("dur").get<double>(), 1500, 0.001);
  EXPECT_EQ(spans[0].at("args"), json::parse(R"({"version":3,"share":0.5,
                                                 "why":"a \"quote\""})"));
  EXPECT_NE(spans[0].at("tid"), spans[1].at("tid"));
  std::vector<std::string> names;
  for (const json& event : Events(all, "M")) {
    if (event.at("name") == "process_name")
      names.push_back(event["args"]["name"].get<std::string>());
    if (event.at("name") == "cohort_clock") {
      EXPECT_EQ(event["args"]["server_offset_us"], 5);
      EXPECT_EQ(event["args"]["run"], "3f2a");
    }
    if (event.at("tid") == spans[1].at("tid")) {
      EXPECT_EQ(event["args"]["name"], "apply");
    }
  }
  EXPECT_EQ(names.back(), "worker 1");
}

TEST(TraceFileTest, WhatCannotBeHeldIsCounted) {
  const TempDir folder;
  const std::string path = folder.File("trace.json");
  int64_t added = 0;
  {
    auto trace = OkValue(TraceFile::Create(path, "server"));
    for (; added < 4 * static_cast<int64_t>(TraceFile::kSpansMax); ++added) {
      trace->Add({.name = "s"});
    }
  }
  const json all = json::parse(ReadText(path));
  int64_t dropped = 0;
  for (const json& event : Events(all, "C")) dropped = event["args"]["spans"];
  EXPECT_EQ(static_cast<int64_t>(Events(all, "X").size()) + dropped, added);
}

TEST(TraceFileTest, PathThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(TraceFile::Create("/no/such/folder/t.json", "server"),
              IsError(kFailedPrecondition, "/no/such/folder/t.json"));
}

TEST(TraceMergeTest, PutsAllOnTheServersClock) {
  const TempDir folder;
  // The worker's clock is 3000 us behind, and its file is 1000 us younger. The
  // other worker has no estimate.
  WriteText(folder.File("w0"),
            Example("worker", "r", 0, 1'700'000'000'000'000 - 2000, 3000, 20));
  WriteText(folder.File("w1"),
            Example("worker", "r", 1, 1'700'000'000'000'000 + 400, 0, -1));
  WriteText(folder.File("s"),
            Example("server", "r", -1, 1'700'000'000'000'000, 0, -1) + "\n]\n");
  const auto merged = OkValue(
      MergeTraces({folder.File("w1"), folder.File("w0"), folder.File("s")},
                  folder.File("out")));
  ASSERT_EQ(merged.processes.size(), 3u);
  EXPECT_EQ(merged.processes[0].name, "server");
  EXPECT_EQ(merged.processes[0].clock_error, absl::ZeroDuration());
  EXPECT_EQ(merged.processes[1].name, "worker 0");
  EXPECT_EQ(merged.processes[1].clock_error, absl::Microseconds(20));
  EXPECT_LT(merged.processes[2].clock_error, absl::ZeroDuration());
  const json all = json::parse(ReadText(folder.File("out"))).at("traceEvents");
  const std::vector<json> spans = Events(all, "X");
  ASSERT_EQ(spans.size(), 3u);
  // In order of time, numbered by process.
  EXPECT_EQ(spans[0]["pid"], 1);
  EXPECT_EQ(spans[0]["ts"], 100);
  EXPECT_EQ(spans[1]["pid"], 3);
  EXPECT_EQ(spans[1]["ts"], 500);
  EXPECT_EQ(spans[2]["pid"], 2);
  EXPECT_EQ(spans[2]["ts"], 1100);
  // Thread numbers were equal, but on three machines.
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  EXPECT_NE(spans[0]["tid"], spans[2]["tid"]);
  EXPECT_NE(spans[1]["tid"], spans[2]["tid"]);
}

TEST(TraceMergeTest, EachIncarnationByItsName) {
  const TempDir folder;
  const std::string server = folder.File("server.json");
  const std::string first = folder.File("first.json");
  const std::string second = folder.File("second.json");
  WriteText(server, Example("server", "3f2a", -1, 1000, 0, 0));
  WriteText(first, Example("worker", "3f2a", 0, 2000, 0, 5));
  WriteText(second, Example("worker", "3f2a", 0, 9000, 0, 5));
  const std::string out = folder.File("merged.json");
  const MergedTrace merged = OkValue(MergeTraces({second, server, first}, out));
  ASSERT_EQ(merged.processes.size(), 3u);
  EXPECT_EQ(merged.processes[1].name, "worker 0");
  EXPECT_EQ(merged.processes[2].name, "worker 0, process 2");
}

TEST(TraceMergeTest, TakesWhatAKilledProcessLeft) {
  const TempDir folder;
  const std::string whole = Example("server", "r", -1, 1'000'000, 0, -1);
  WriteText(folder.File("s"), whole + ",\n{\"ph\":\"X\",\"na");
  const auto merged =
      OkValue(MergeTraces({folder.File("s")}, folder.File("out")));
  EXPECT_EQ(merged.processes[0].spans, 1);
}

TEST(TraceMergeTest, WhatIsNoTraceIsNamed) {
  const TempDir folder;
  const std::string good = Example("server", "r", -1, 1'000'000, 0, -1);
  const struct {
    std::string text;
    std::string error;
  } cases[] = {{"[\n]\n", "got no cohort_clock event"},
               {"hello\nworld\n", "line 1: not valid JSON"},
               {"[\n{\"ph\":\"X\"}\n]\n", "line 2: not a trace event"},
               {absl::StrReplaceAll(
                    good, {{"\"wall_us\":1000000", "\"wall_us\":\"x\""}}),
                "not a trace event"},
               {absl::StrReplaceAll(good, {{"\"run\":\"r\"", "\"run\":\"q\""}}),
                "got run q, want r"}};
  WriteText(folder.File("good"), good);
  for (const auto& [text, error] : cases) {
    WriteText(folder.File("bad"), text);
    const auto merged = MergeTraces({folder.File("good"), folder.File("bad")},
                                    folder.File("out"));
    EXPECT_THAT(merged, IsError(kInvalidArgument, error));
    EXPECT_THAT(std::string(merged.status().message()),
                HasSubstr(folder.File("bad")));
  }
  EXPECT_TRUE(absl::IsNotFound(
      MergeTraces({folder.File("none")}, folder.File("out")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MergeTraces({folder.File("good")}, folder.File("good")).status()));
}

}  // namespace
}  // namespace cohort
