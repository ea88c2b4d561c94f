#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(LogLevelTest, TellsAndChangesTheLevel) {
  CtlHarness ctl;
  std::string wanted = "?";
  ctl.server.on_log_level = [&](const v1::SetLogLevelRequest& request) {
    wanted = request.level();
    v1::SetLogLevelReply reply;
    reply.set_level(wanted.empty() ? "info" : wanted);
    reply.set_previous("info");
    return reply;
  };
  EXPECT_EQ(ctl.Run("log level").out, "log level info\n");
  EXPECT_EQ(wanted, "");
  EXPECT_EQ(ctl.Run("log level debug").out, "log level info -> debug\n");
  EXPECT_EQ(wanted, "debug");
  EXPECT_EQ(ctl.Run("log level debug --json").out,
            "{\"level\":\"debug\",\"previous\":\"info\"}\n");
}

TEST(LogLevelTest, WrongLevelsAreRefused) {
  CtlHarness ctl;
  ctl.server.on_log_level = [](const v1::SetLogLevelRequest&) {
    return absl::InvalidArgumentError("log level: got 'loud', want debug");
  };
  EXPECT_THAT(ctl.Run("log level loud"),
              PrintsError(3, "log level: got 'loud'"));
  EXPECT_EQ(ctl.Run("log level debug info").code, 2);
}

std::string TraceOf(const std::string& process, int rank) {
  return absl::StrCat(
      "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"tid\":0,\"args\":"
      "{\"name\":\"",
      process,
      "\"}},\n{\"ph\":\"M\",\"name\":\"cohort_clock\",\"pid\":1,\"tid\":0,"
      "\"args\":{\"process\":\"",
      process, "\",\"run\":\"3f2a\",\"rank\":", rank,
      ",\"wall_us\":1000,\"server_offset_us\":0,\"server_error_us\":",
      rank < 0 ? -1 : 12,
      "}},\n{\"ph\":\"X\",\"name\":\"step\",\"pid\":1,\"tid\":1,\"ts\":5,"
      "\"dur\":1,\"args\":{}}\n]\n");
}

TEST(TraceMergeTest, WritesOneTimelineAndTellsWhoIsInIt) {
  CtlHarness ctl;
  const TempDir folder;
  WriteText(folder.File("s"), TraceOf("server", -1));
  WriteText(folder.File("w"), TraceOf("worker", 0));
  // No server is needed.
  ctl.server.Shutdown();
  const std::string command =
      absl::StrCat("trace merge ", folder.File("w"), " ", folder.File("s"),
                   " --out=", folder.File("run.json"));
  const CtlResult merged = ctl.RunPlain(command);
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_EQ(merged.out,
            "process  spans  clock off by at most\n"
            "server   1      0\n"
            "worker   1      12us\n");
  EXPECT_EQ(nlohmann::json::parse(ReadText(folder.File("run.json")))
                .at("traceEvents")
                .size(),
            6u);
  const auto json =
      nlohmann::json::parse(ctl.RunPlain(command + " --json").out);
  EXPECT_EQ(json["run"], "3f2a");
  EXPECT_EQ(json["processes"][1]["clock_error_us"], 12);
}

TEST(TraceMergeTest, FilesThatAreMissingOrNoTracesAreRefused) {
  CtlHarness ctl;
  EXPECT_EQ(ctl.RunPlain("trace merge").code, 2);
  const CtlResult none = ctl.RunPlain("trace merge /no/such/file");
  EXPECT_NE(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("/no/such/file"));
  const TempDir folder;
  WriteText(folder.File("text"), "hello\n");
  EXPECT_THAT(ctl.RunPlain(absl::StrCat("trace merge ", folder.File("text"))),
              PrintsError(3, "text"));
}

}  // namespace
}  // namespace cohort
