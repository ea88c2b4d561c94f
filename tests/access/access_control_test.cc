#include "server/access/access_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fakes/reports.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr char kDrain[] = "/cohort.v1.Admin/Drain";

Presented With(const std::string& role, const std::string& run = "demo") {
  return {.identity =
              *ParseIdentity("spiffe://a.org/cohort/" + run + "/" + role)};
}

class AccessControlTest : public testing::Test {
 protected:
  absl::StatusCode Call(const std::string& path, const Presented& presented) {
    return access_->CheckCall(path, presented).status().code();
  }

  Reports<std::vector<DeniedCalls>> reports_;
  std::unique_ptr<AccessControl> access_ = std::make_unique<AccessControl>(
      *ParseIdentity("spiffe://a.org/cohort/demo/server/0"), nullptr,
      [this](const std::vector<DeniedCalls>& denied) { reports_.Add(denied); });
};

TEST_F(AccessControlTest, TheTableDecides) {
  EXPECT_EQ(Call(kDrain, With("operator")), kOk);
  EXPECT_EQ(Call(kDrain, With("viewer")), kPermissionDenied);
  EXPECT_EQ(Call(kDrain, With("worker/0")), kPermissionDenied);
  EXPECT_EQ(Call(kDrain, With("operator", "other")), kPermissionDenied);
  EXPECT_EQ(Call(kDrain, {}), kUnauthenticated);
  EXPECT_EQ(access_->denied(Refusal::kRole), 2);
  EXPECT_EQ(access_->denied(Refusal::kOtherRun), 1);
  EXPECT_EQ(access_->denied(Refusal::kNoIdentity), 1);
  EXPECT_EQ(access_->denied(Refusal::kUnknownToken), 0);
}

// A data shard's certificate is a server's as well.
TEST_F(AccessControlTest, OnlyTheFirstServerTakesADataShard) {
  for (const char* method : {"Attach", "Fetch"}) {
    const std::string path = std::string("/cohort.v1.DataShards/") + method;
    EXPECT_EQ(Call(path, With("server/0")), kOk);
    EXPECT_THAT(access_->CheckCall(path, With("server/1")),
                IsError(kPermissionDenied, "want the certificate of server/0"));
  }
  EXPECT_EQ(access_->denied(Refusal::kRole), 2);
}

TEST_F(AccessControlTest, UnknownMethodsAreDeniedToAll) {
  EXPECT_THAT(access_->CheckCall("/cohort.v1.Admin/Missing", With("operator")),
              IsError(kPermissionDenied, "which no client may"));
}

TEST_F(AccessControlTest, HealthIsForAll) {
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", {}), kOk);
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", With("viewer", "other")), kOk);
}

TEST_F(AccessControlTest, PagesAreForPeople) {
  EXPECT_TRUE(access_->CheckPage("/metrics", With("viewer")).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(
      access_->CheckPage("/metrics", With("worker/0")).status()));
  // Another run's certificate is counted as such, for pages too.
  EXPECT_FALSE(access_->CheckPage("/metrics", With("viewer", "other")).ok());
  EXPECT_EQ(access_->denied(Refusal::kOtherRun), 1);
}

TEST_F(AccessControlTest, ErrorsSayWhatIsWanted) {
  EXPECT_THAT(access_->CheckCall(kDrain, With("viewer")),
              IsError(kPermissionDenied,
                      "demo/viewer may not call /cohort.v1.Admin/Drain"));
}

TEST_F(AccessControlTest, TheFirstDenialIsReportedAtOnceAndTheRestTogether) {
  Call(kDrain, With("viewer"));
  EXPECT_EQ(reports_.Await(0).at(0).count, 1);
  for (int i = 0; i < 5; ++i) Call(kDrain, With("viewer"));
  Call(kDrain, {});
  // The rest comes at the end.
  access_.reset();
  const std::vector<DeniedCalls> rest = reports_.Await(1);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].client, "no identity");
  EXPECT_EQ(rest[0].count, 1);
  EXPECT_EQ(rest[1].client, "spiffe://a.org/cohort/demo/viewer");
  EXPECT_EQ(rest[1].target, kDrain);
  EXPECT_EQ(rest[1].count, 5);
}

TEST_F(AccessControlTest, MessagesOfAnotherRankAreReported) {
  access_->NoteRank("spiffe://a.org/cohort/demo/worker/1");
  const std::vector<DeniedCalls> denied = reports_.Await(0);
  ASSERT_EQ(denied.size(), 1u);
  EXPECT_EQ(denied[0].client, "spiffe://a.org/cohort/demo/worker/1");
  EXPECT_EQ(denied[0].refusal, Refusal::kRank);
  EXPECT_EQ(access_->denied(Refusal::kRank), 1);
}

TEST_F(AccessControlTest, TargetsOfAFloodDoNotFillTheMemory) {
  Call(kDrain, With("viewer"));
  reports_.Await(0);
  for (int i = 0; i < 1000; ++i) {
    Call("/" + std::to_string(i), With("viewer"));
  }
  EXPECT_EQ(access_->denied(Refusal::kRole), 1001);
  access_.reset();
  EXPECT_EQ(reports_.Await(1).size(), 256u);
}

}  // namespace
}  // namespace cohort
