#include "common/local/packet_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

constexpr std::byte kHello[] = {std::byte{1}, std::byte{2}, std::byte{3}};

class PacketSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = PacketListener::Open(path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_.emplace(*std::move(listener));
    auto client = PacketSocket::Connect(path_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_.emplace(*std::move(client));
    auto server = listener_->Accept();
    ASSERT_TRUE(server.ok()) << server.status();
    server_.emplace(*std::move(server));
  }

  TempDir dir_;
  const std::string path_ = absl::StrCat(dir_.path(), "/socket");
  std::optional<PacketListener> listener_;
  std::optional<PacketSocket> client_;
  std::optional<PacketSocket> server_;
};

TEST_F(PacketSocketTest, KeepsTheBoundsOfMessages) {
  ASSERT_TRUE(client_->Send(kHello, {}).ok());
  ASSERT_TRUE(client_->Send(absl::MakeConstSpan(kHello, 1), {}).ok());
  const auto first = server_->Receive(absl::Seconds(5));
  const auto second = server_->Receive(absl::Seconds(5));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, std::vector<std::byte>(kHello, kHello + 3));
  EXPECT_EQ(second->bytes.size(), 1u);
}

TEST_F(PacketSocketTest, PassesFiles) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  FileDescriptor reads(ends[0]);
  {
    FileDescriptor writes(ends[1]);
    const int fd = writes.get();
    ASSERT_TRUE(client_->Send(kHello, absl::MakeConstSpan(&fd, 1)).ok());
  }
  auto packet = OkValue(server_->Receive(absl::Seconds(5)));
  ASSERT_EQ(packet.files.size(), 1u);
  ASSERT_EQ(write(packet.files[0].get(), "x", 1), 1);
  char seen = 0;
  ASSERT_EQ(read(reads.get(), &seen, 1), 1);
  EXPECT_EQ(seen, 'x');
  EXPECT_EQ(fcntl(packet.files[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(PacketSocketTest, AMessageAboveTheLimitIsAnErrorAndItsFilesAreClosed) {
  const std::vector<std::byte> large(PacketSocket::kBytesMax + 1);
  ASSERT_EQ(send(client_->fd(), large.data(), large.size(), 0),
            static_cast<ssize_t>(large.size()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(server_->Receive(absl::Seconds(5)).status()));
}

TEST_F(PacketSocketTest, SaysThatNothingCameOrThatThePeerIsGone) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      server_->Receive(absl::ZeroDuration()).status()));
  client_.reset();
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(absl::Seconds(5)).status()));
  EXPECT_TRUE(absl::IsUnavailable(server_->Send(kHello, {})));
}

TEST_F(PacketSocketTest, APeerThatReadsNothingBlocksNobody) {
  absl::Status sent;
  for (int i = 0; i < 100'000 && sent.ok(); ++i) {
    sent = client_->Send(kHello, {});
  }
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
}

TEST_F(PacketSocketTest, KnowsThePeersUser) {
  const auto user = OkValue(server_->PeerUser());
  EXPECT_EQ(user, geteuid());
}

TEST_F(PacketSocketTest, TheSocketGoesWithItsListener) {
  listener_.reset();
  struct stat status {};
  EXPECT_EQ(stat(path_.c_str(), &status), -1);
  EXPECT_TRUE(absl::IsUnavailable(PacketSocket::Connect(path_).status()));
}

TEST(PacketListenerTest, AnAbstractNameNeedsNoFile) {
  const std::string name = absl::StrCat("@cohort-test-", getpid());
  {
    auto listener = OkValue(PacketListener::Open(name));
    EXPECT_TRUE(PacketSocket::Connect(name).ok());
    EXPECT_TRUE(absl::IsUnavailable(PacketListener::Open(name).status()));
  }
  EXPECT_TRUE(absl::IsUnavailable(PacketSocket::Connect(name).status()));
}

TEST(PacketListenerTest, RefusesAPathThatTheSystemDoesNotPermit) {
  const auto listener = PacketListener::Open(std::string(200, 'a'));
  EXPECT_TRUE(absl::IsInvalidArgument(listener.status())) << listener.status();
}

}  // namespace
}  // namespace cohort
