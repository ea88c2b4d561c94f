#include "server/access/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<Json> LinesOf(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

class AuditLogTest : public testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = dir_.File("audit.jsonl");
};

TEST_F(AuditLogTest, AnIntentComesBeforeItsOutcome) {
  const auto log = OkValue(AuditLog::Open(path_));
  const auto id = OkValue(log->Intent({.client = "spiffe://a/cohort/b/operator",
                                       .verb = "SetPolicy",
                                       .arguments = R"({"settings":{"a":"1"}})",
                                       .version = 7}));
  // Durable before the call continues.
  ASSERT_EQ(LinesOf(path_).size(), 1u);
  ExpectOk(log->Outcome(id, absl::InvalidArgumentError("no such thing")));
  const std::vector<Json> lines = LinesOf(path_);
  EXPECT_EQ(lines[0]["event"], "intent");
  EXPECT_EQ(lines[0]["client"], "spiffe://a/cohort/b/operator");
  EXPECT_EQ(lines[0]["arguments"]["settings"]["a"], "1");
  EXPECT_EQ(lines[0]["version"], 7);
  EXPECT_EQ(lines[1]["event"], "outcome");
  EXPECT_EQ(lines[1]["id"], lines[0]["id"]);
  EXPECT_EQ(lines[1]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(lines[1]["message"], "no such thing");
}

TEST_F(AuditLogTest, TextsCannotForgeLines) {
  const auto log = OkValue(AuditLog::Open(path_));
  ExpectOk(log->Intent({.client = "a\n{\"event\":\"outcome\"}",
                        .verb = "x",
                        .arguments = "\xff not json \n"}));
  const std::vector<Json> lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["client"], "a\n{\"event\":\"outcome\"}");
}

TEST_F(AuditLogTest, OnlyItsOwnerReadsIt) {
  ASSERT_TRUE(AuditLog::Open(path_).ok());
  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(AuditLogTest, GoesOnAfterARestartAndNewIdsAreLarger) {
  int64_t first = 0;
  {
    const auto log = AuditLog::Open(path_);
    first = (*log)->Intent({.verb = "Drain"}).value();
  }
  const auto log = AuditLog::Open(path_);
  EXPECT_GT((*log)->Intent({.verb = "Drain"}).value(), first);
  EXPECT_EQ(LinesOf(path_).size(), 2u);
}

TEST_F(AuditLogTest, AFullFileMakesWayForANewOne) {
  const auto log = OkValue(AuditLog::Open(path_, /*file_bytes_max=*/200));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(log->Intent({.client = std::string(150, 'x')}).ok());
  }
  EXPECT_EQ(LinesOf(path_).size(), 1u);
  EXPECT_EQ(LinesOf(path_ + ".1").size(), 1u);
}

TEST_F(AuditLogTest, AFileThatCannotBeWrittenIsAnError) {
  std::filesystem::create_directory(dir_.File("folder"));
  EXPECT_THAT(AuditLog::Open(dir_.File("folder")),
              IsError(kFailedPrecondition, "--audit_log: "));
  // Every write fails there for lack of space.
  std::filesystem::create_symlink("/dev/full", dir_.File("link"));
  EXPECT_FALSE(AuditLog::Open(dir_.File("link")).ok());
}

TEST_F(AuditLogTest, AFullDiskIsAStateOfItsOwnUntilThereIsRoom) {
  const auto log = OkValue(AuditLog::Open(path_, /*file_bytes_max=*/1));
  ASSERT_TRUE(log->Intent({.verb = "Drain"}).ok());
  EXPECT_EQ(log->problem(), "");
  // The next line begins a new file, and the old one cannot make way.
  std::filesystem::create_directory(path_ + ".1");
  std::ofstream(path_ + ".1/x") << "in the way";
  EXPECT_THAT(log->Intent({.verb = "SetPolicy"}),
              IsError(kFailedPrecondition, "nothing was changed"));
  EXPECT_THAT(log->problem(), HasSubstr(path_));
  std::filesystem::remove_all(path_ + ".1");
  EXPECT_TRUE(log->Intent({.verb = "SetPolicy"}).ok());
  EXPECT_EQ(log->problem(), "");
}

TEST_F(AuditLogTest, EveryLineNamesTheRunOnceItIsKnown) {
  const auto log = AuditLog::Open(path_);
  ASSERT_TRUE((*log)->Denied({{.client = "x"}}).ok());
  (*log)->SetRun("1efd");
  const int64_t id = (*log)->Intent({.verb = "Drain"}).value();
  ASSERT_TRUE((*log)->Outcome(id, absl::OkStatus()).ok());
  ASSERT_TRUE((*log)->Denied({{.client = "x"}}).ok());
  const std::vector<Json> lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_FALSE(lines[0].contains("run"));
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(lines[i]["run"], "1efd");
}

TEST_F(AuditLogTest, DeniedCallsHaveALineEach) {
  const auto log = AuditLog::Open(path_);
  ExpectOk((*log)->Denied({{.client = "token ana",
                            .target = "/cohort.v1.Admin/Drain",
                            .refusal = Refusal::kRole,
                            .count = 3}}));
  const std::vector<Json> lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "denied");
  EXPECT_EQ(lines[0]["reason"], "role");
  EXPECT_EQ(lines[0]["count"], 3);
}

}  // namespace
}  // namespace cohort
