#include "worker/client/local_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/local/boot_id.h"
#include "common/unix_address.h"
#include "server/local/local_door.h"
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
    const auto address = UnixAddressOf(folder_.File("grpc"));
    listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(listener_, address->get(), address->size), 0);
    ASSERT_EQ(listen(listener_, 8), 0);
    offer_.set_boot_id(BootId());
    OfferMemory();
    offer_.set_address(absl::StrCat("unix:", folder_.File("grpc")));
  }
  void TearDown() override { close(listener_); }

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
  int listener_ = -1;
  v1::LocalOffer offer_;
};

TEST_F(LocalPathTest, AutoPrefersSharedMemory) {
  const auto path = Choose(LocalMode::kAuto);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_NE(path->memory, nullptr);
  EXPECT_EQ(path->address, "");
  EXPECT_EQ(path->text, "gradients and weights go through shared memory");
}

TEST_F(LocalPathTest, AutoTakesTheUnixSocketNextAndSaysWhy) {
  offer_.clear_socket();
  const auto path = Choose(LocalMode::kAuto);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->memory, nullptr);
  EXPECT_EQ(path->address, offer_.address());
  EXPECT_EQ(
      path->text,
      "gradients and weights go over a Unix socket: no shared memory: the "
      "server offers no shared memory; see its --local");
}

TEST_F(LocalPathTest, AutoTakesTcpLastAndSaysWhy) {
  offer_.clear_socket();
  offer_.set_address(absl::StrCat("unix:", folder_.File("no")));
  const auto path = Choose(LocalMode::kAuto);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->address, "");
  EXPECT_EQ(path->text,
            absl::StrCat("gradients and weights go over TCP: the server offers "
                         "no shared memory; see its --local; no Unix socket: ",
                         offer_.address(), ": No such file or directory"));
}

TEST_F(LocalPathTest, NothingWorksOnAnotherHostForOneReason) {
  offer_.set_boot_id("another");
  const auto path = Choose(LocalMode::kAuto);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->text,
            "gradients and weights go over TCP: the server is on another host");
}

TEST_F(LocalPathTest, AWayThatIsNamedIsTakenAlone) {
  auto path = Choose(LocalMode::kUnix);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->memory, nullptr);
  EXPECT_EQ(path->address, offer_.address());
  EXPECT_EQ(path->text, "gradients and weights go over a Unix socket");
  path = Choose(LocalMode::kTcp);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->memory, nullptr);
  EXPECT_EQ(path->address, "");
}

TEST_F(LocalPathTest, AWayThatIsNamedAndDoesNotWorkIsAnError) {
  offer_.clear_socket();
  const absl::Status memory = Choose(LocalMode::kSharedMemory).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(memory));
  EXPECT_THAT(std::string(memory.message()),
              HasSubstr("--local=shm: the server offers no shared memory"));
  offer_.clear_address();
  const absl::Status socket = Choose(LocalMode::kUnix).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(socket));
  EXPECT_THAT(std::string(socket.message()),
              HasSubstr("--local=unix: the server offers no Unix socket"));
}

// A worker that connected to a Unix socket stays there.
TEST_F(LocalPathTest, AServerAtAUnixSocketNeedsNoOther) {
  offer_ = v1::LocalOffer();
  for (const LocalMode mode : {LocalMode::kUnix, LocalMode::kAuto}) {
    const auto path = Choose(mode, "unix:/run/cohort/socket");
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(path->address, "unix:/run/cohort/socket");
  }
}

TEST_F(LocalPathTest, AnOfferThatIsNoUnixSocketIsRefused) {
  offer_.set_address("10.0.0.1:7070");
  EXPECT_THAT(std::string(Choose(LocalMode::kUnix).status().message()),
              HasSubstr("the server offers '10.0.0.1:7070', want a Unix "
                        "socket"));
}

TEST(PathToShardsTest, IsOverTcpOnly) {
  for (const LocalMode mode : {LocalMode::kSharedMemory, LocalMode::kUnix}) {
    const absl::Status status = PathToShards(mode).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("several shards"));
  }
  for (const LocalMode mode : {LocalMode::kAuto, LocalMode::kTcp}) {
    const absl::StatusOr<LocalPath> path = PathToShards(mode);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(path->transport, "tcp");
  }
}

}  // namespace
}  // namespace cohort
