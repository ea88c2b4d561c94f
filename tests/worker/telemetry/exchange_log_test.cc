#include "worker/telemetry/exchange_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/float_ropes.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// One parameter of two elements, in one partition.
ModelLayout TwoWeights() {
  return {.parameters = {{.name = "w", .shape = {2}}}};
}

class ExchangeLogTest : public testing::Test {
 protected:
  ExchangeLogTest()
      : path_(dir_.File("exchange.jsonl")),
        server_({{.kind = AssignmentKind::kTrain,
                  .members = {Rank(0)},
                  .range = {.begin = 4, .end = 8}}}) {
    absl::StatusOr<std::unique_ptr<ExchangeLog>> log =
        ExchangeLog::Open(path_, server_);
    EXPECT_TRUE(log.ok()) << log.status();
    client_ = *std::move(log);
  }

  // Joins, registers and takes the only assignment.
  void Start() {
    ASSERT_TRUE(client_->Join().ok());
    const std::vector<float> values = {1, 2};
    const std::vector<absl::Span<const float>> spans = {values};
    ASSERT_TRUE(client_->Register(TwoWeights(), {}, spans, {}).ok());
    ASSERT_TRUE(client_->NextAssignment().ok());
  }

  void Push() {
    ASSERT_TRUE(client_->OpenPush({.samples = 4, .loss_weight = 4}).ok());
    ASSERT_TRUE(client_->SendGradient(0, RopeOver({8, 16}), {}).ok());
    client_->ClosePush({}).status().IgnoreError();
  }

  std::vector<json> Lines() const {
    std::vector<json> lines;
    for (const std::string& line : ReadLines(path_)) {
      lines.push_back(json::parse(line));
    }
    return lines;
  }

  const TempDir dir_;
  const std::string path_;
  FakeClient server_;
  std::unique_ptr<ExchangeLog> client_;
};

TEST_F(ExchangeLogTest, APushAndItsVerdictHaveKeyAndChecksums) {
  Start();
  Push();
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0]["event"], "join");
  const json& given = lines[1];
  EXPECT_EQ(given["event"], "assignment");
  EXPECT_EQ(given["kind"], "train");
  EXPECT_EQ(given["range"], json::array({4, 8}));
  EXPECT_EQ(given["members"], json::array({0}));
  const json& push = lines[2];
  EXPECT_EQ(push["event"], "push");
  EXPECT_EQ(push["sequence"], 1);
  EXPECT_EQ(push["version"], 0);
  EXPECT_EQ(push["samples"], 4);
  EXPECT_EQ(push["gradients"],
            json::array({ChecksumText(RopeOver({8, 16}).Checksum())}));
  const json& verdict = lines[3];
  EXPECT_EQ(verdict["event"], "verdict");
  EXPECT_EQ(verdict["sequence"], 1);
  EXPECT_EQ(verdict["verdict"], "applied");
  EXPECT_EQ(verdict["version"], 1);
  EXPECT_EQ(verdict["incarnation"], 1);
  EXPECT_LE(push["begin_us"], verdict["end_us"]);
  // A reader of that version gets the same.
  const PulledVersion pulled = OkValue(client_->Pull({.weights = true}));
  const json pull = Lines().back();
  EXPECT_EQ(pull["requested"], nullptr);
  EXPECT_EQ(pull["version"], 1);
  EXPECT_EQ(pull["weights"], verdict["weights"]);
}

TEST_F(ExchangeLogTest, APushWithoutAnAnswerIsThereAndItsErrorToo) {
  server_.on_close = [] { return absl::UnavailableError("cut"); };
  Start();
  Push();
  const std::vector<json> lines = Lines();
  EXPECT_EQ(lines[2]["event"], "push");
  EXPECT_EQ(lines[3]["event"], "verdict");
  EXPECT_THAT(std::string(lines[3]["error"]), HasSubstr("cut"));
  EXPECT_FALSE(lines[3].contains("verdict"));
}

TEST_F(ExchangeLogTest, AReplacementContinuesTheFile) {
  Start();
  client_ = *ExchangeLog::Open(path_, server_);
  client_->Leave({.reason = "done"});
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines.back()["event"], "leave");
  EXPECT_EQ(lines.back()["reason"], "done");
}

TEST_F(ExchangeLogTest, AFileThatCannotBeWrittenIsNamed) {
  const std::string path = dir_.File("none/exchange.jsonl");
  EXPECT_THAT(ExchangeLog::Open(path, server_),
              IsError(kFailedPrecondition, path));
}

}  // namespace
}  // namespace cohort
