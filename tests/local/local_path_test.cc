#include "worker/client/local_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/local/boot_id.h"
#include "server/local/local_door.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr char kServer[] = "127.0.0.1:7070";

class LocalPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto door =
        LocalDoor::Open({.directory = folder_.path(),
                         .weights = std::make_shared<SharedFloatFiles>(),
                         .needs = [this]() -> std::optional<LocalNeeds> {
                           return LocalNeeds{.partitions = partitions_};
                         }},
                        clock_);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    offer_.set_boot_id(BootId());
    OfferMemory();
  }

  void OfferMemory() {
    const LocalDoor::Offer offer = door_->Invite(Rank(0), Incarnation(1));
    offer_.set_socket(offer.socket);
    offer_.set_token(offer.token);
  }

  absl::StatusOr<LocalPath> Choose(LocalMode mode,
                                   const std::string& server = kServer) const {
    return ChooseLocalPath(mode, server, offer_, partitions_);
  }

  TempDir folder_;
  SteadyClock clock_;
  const std::vector<Partition> partitions_ = {{.elements = 4}};
  std::unique_ptr<LocalDoor> door_;
  v1::LocalOffer offer_;
};

TEST_F(LocalPathTest, AutoPrefersSharedMemory) {
  const auto path = OkValue(Choose(LocalMode::kAuto));
  EXPECT_NE(path.memory, nullptr);
  EXPECT_EQ(path.text, "gradients and weights go through shared memory");
}

TEST_F(LocalPathTest, AutoTakesTheConnectionNextAndSaysWhy) {
  offer_.clear_socket();
  for (const auto& [server, transport] :
       {std::pair{kServer, "tcp"}, {"unix:/run/cohort/socket", "unix"}}) {
    const auto path = OkValue(Choose(LocalMode::kAuto, server));
    EXPECT_EQ(path.memory, nullptr);
    EXPECT_EQ(path.transport, transport);
    EXPECT_THAT(path.text, HasSubstr("the server offers no shared memory"));
  }
}

TEST_F(LocalPathTest, NothingIsSharedWithAnotherHost) {
  offer_.set_boot_id("another");
  const auto path = OkValue(Choose(LocalMode::kAuto));
  EXPECT_EQ(path.transport, "tcp");
  EXPECT_THAT(path.text, HasSubstr("the server is on another host"));
}

TEST_F(LocalPathTest, TcpIsTakenAlone) {
  const auto path = OkValue(Choose(LocalMode::kTcp));
  EXPECT_EQ(path.memory, nullptr);
  EXPECT_EQ(path.transport, "tcp");
}

TEST_F(LocalPathTest, AWayThatIsNamedAndDoesNotWorkIsAnError) {
  offer_.clear_socket();
  EXPECT_THAT(Choose(LocalMode::kSharedMemory),
              IsError(kFailedPrecondition, "--local=shm"));
}

TEST(PathToShardsTest, IsOverTcpOnly) {
  EXPECT_THAT(PathToShards(LocalMode::kSharedMemory),
              IsError(kFailedPrecondition, "several shards"));
  for (const LocalMode mode : {LocalMode::kAuto, LocalMode::kTcp}) {
    const LocalPath path = OkValue(PathToShards(mode));
    EXPECT_EQ(path.transport, "tcp");
  }
}

}  // namespace
}  // namespace cohort
