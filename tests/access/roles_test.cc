#include "server/access/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RolesTest, NoMethodIsInTheTableTwice) {
  std::set<std::string> paths;
  for (const MethodRights& rights : RightsTable()) {
    EXPECT_TRUE(paths.insert(std::string(rights.path)).second) << rights.path;
  }
}

TEST(RolesTest, WorkersTrainAndChangeNothingElse) {
  for (const MethodRights& rights : RightsTable()) {
    const bool admin = rights.path.find("/cohort.v1.Admin/") == 0;
    const bool health = rights.path.find("/grpc.health") == 0;
    const bool for_workers = std::find(rights.roles.begin(), rights.roles.end(),
                                       PeerRole::kWorker) != rights.roles.end();
    const bool shards = rights.path.find("/cohort.v1.DataShards/") == 0;
    EXPECT_EQ(for_workers, !admin && !health && !shards) << rights.path;
  }
}

TEST(RolesTest, OnlyTheFirstServerReachesTheCallsBetweenShards) {
  for (const char* path :
       {"/cohort.v1.DataShards/Attach", "/cohort.v1.DataShards/Fetch"}) {
    EXPECT_THAT(RightsOf(path)->roles, ElementsAre(PeerRole::kServer));
    EXPECT_EQ(RightsOf(path)->server, 0);
  }
}

TEST(RolesTest, UnknownMethodsHaveNoRow) {
  EXPECT_EQ(RightsOf("/cohort.v1.Admin/Missing"), nullptr);
  EXPECT_EQ(RightsOf(""), nullptr);
  EXPECT_THAT(RightsOf("/cohort.v1.Admin/Drain")->roles,
              ElementsAre(PeerRole::kOperator));
  EXPECT_THAT(RightsOf("/grpc.health.v1.Health/Check")->roles, IsEmpty());
}

}  // namespace
}  // namespace cohort
