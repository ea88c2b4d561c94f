#include "server/ctl/connection_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ctl/doctor/server_checks.h"

namespace cohort {
namespace {

using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

ConnectionView ExampleConnection() {
  return {.encrypted = true,
          .client = "spiffe://a.org/cohort/demo/operator",
          .own_end = kNow + absl::Hours(24 * 300),
          .server_end = kNow + absl::Hours(24 * 8)};
}

TEST(ConnectionTextTest, SaysAsWhomAndUntilWhen) {
  EXPECT_EQ(ConnectionText({}, kNow), "not encrypted");
  EXPECT_EQ(
      ConnectionText(ExampleConnection(), kNow),
      "encrypted, as spiffe://a.org/cohort/demo/operator, own certificate "
      "ends in 300 days, the server's in 8 days");
  EXPECT_EQ(EndText(kNow + absl::Minutes(5), kNow), "in 5 minutes");
  EXPECT_EQ(EndText(kNow, kNow), "expired");
}

TEST(ConnectionTextTest, DoctorWarnsAWeekBeforeTheEnd) {
  const auto result = [](const ConnectionView& view, const char* address) {
    return CheckConnection(view, address, kNow).result;
  };
  ConnectionView view = ExampleConnection();
  EXPECT_EQ(result(view, "10.0.0.1:7070"), Check::Result::kOk);
  view.server_end = kNow + absl::Hours(24 * 6);
  EXPECT_EQ(result(view, "10.0.0.1:7070"), Check::Result::kWarning);
  EXPECT_EQ(result({}, "10.0.0.1:7070"), Check::Result::kWarning);
  EXPECT_EQ(result({}, "127.0.0.1:7070"), Check::Result::kOk);
}

TEST(ConnectionTextTest, DoctorNamesARecordThatCannotBeWritten) {
  v1::Status status;
  status.set_audit_problem("the audit log a.jsonl cannot be written: full");
  const Check check = CheckRecord(status);
  EXPECT_EQ(check.result, Check::Result::kFailed);
  EXPECT_THAT(check.found, HasSubstr("a.jsonl cannot be written: full"));
}

TEST(ConnectionTextTest, DoctorNamesACheckpointThatCannotBeWritten) {
  v1::Status status;
  status.set_checkpoint_problem("checkpoint of step 7 failed; disk full");
  const Check check = CheckCheckpoints(status);
  EXPECT_EQ(check.result, Check::Result::kFailed);
  EXPECT_EQ(check.found, "checkpoint of step 7 failed; disk full");
}

TEST(ConnectionTextTest, DoctorNamesRanksThatTrainTheSameBatches) {
  v1::Status status;
  status.set_data_problem("ranks 0 and 1 train the same batches");
  const Check check = CheckData(status);
  EXPECT_EQ(check.result, Check::Result::kWarning);
  EXPECT_EQ(check.found, "ranks 0 and 1 train the same batches");
}

}  // namespace
}  // namespace cohort
