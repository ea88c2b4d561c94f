#include "common/ops/socket_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "common/listen_address.h"
#include "common/ops/listen_socket.h"
#include "common/unix_address.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

class SocketFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<ListenSocket> Listen() {
    ListenAddress address{.socket = path_};
    return ListenSocket::Open("--listen", address);
  }
  // True if a process listens there.
  bool Connects() const {
    const auto address = UnixAddressOf(path_);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool connected = connect(fd, address->get(), address->size) == 0;
    close(fd);
    return connected;
  }
  // A file as a killed process leaves it behind.
  void LeaveSocket(int type = SOCK_STREAM) const {
    const auto address = UnixAddressOf(path_);
    const int fd = socket(AF_UNIX, type, 0);
    EXPECT_EQ(bind(fd, address->get(), address->size), 0);
    EXPECT_EQ(listen(fd, 1), 0);
    close(fd);
    EXPECT_TRUE(std::filesystem::exists(path_));
  }

  TempDir folder_;
  const std::string path_ = folder_.File("socket");
};

TEST_F(SocketFileTest, IsOfThisUserOnlyWhateverTheUmask) {
  for (const mode_t mask : {0000, 0777}) {
    const mode_t before = umask(mask);
    const auto socket = Listen();
    umask(before);
    ASSERT_TRUE(socket.ok()) << socket.status();
    struct stat status = {};
    ASSERT_EQ(stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    EXPECT_TRUE(Connects());
  }
}

TEST_F(SocketFileTest, GoesWithItsSocket) {
  {
    auto socket = Listen();
    ASSERT_TRUE(socket.ok()) << socket.status();
    const ListenSocket moved = *std::move(socket);
    EXPECT_TRUE(Connects());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(SocketFileTest, OneThatIsInUseIsLeftAlone) {
  const auto first = OkValue(Listen());
  EXPECT_THAT(Listen(),
              IsError(kUnavailable, path_ + ": the socket is in use"));
  EXPECT_TRUE(Connects());
}

TEST_F(SocketFileTest, OneThatAKilledProcessLeftIsReplaced) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    LeaveSocket(type);
    const auto socket = OkValue(Listen());
    EXPECT_TRUE(Connects());
  }
}

TEST_F(SocketFileTest, AnotherFileIsNotRemoved) {
  WriteText(path_, "mine");
  EXPECT_THAT(Listen(), IsError(kUnavailable, "which is no socket"));
  EXPECT_EQ(ReadText(path_), "mine");
  std::filesystem::remove(path_);
  {
    const auto socket = OkValue(Listen());
    std::filesystem::remove(path_);
    WriteText(path_, "another");
  }
  EXPECT_EQ(ReadText(path_), "another");
}

TEST_F(SocketFileTest, NamesAFolderThatIsMissing) {
  ListenAddress address{.socket = folder_.File("no/socket")};
  EXPECT_THAT(ListenSocket::Open("--listen", address),
              IsError(kUnavailable, folder_.File("no") + " does not exist"));
}

TEST(AbstractSocketTest, IsFreeAgainWithoutAFile) {
  ListenAddress address{.socket = "@cohort-test-" + std::to_string(getpid())};
  {
    const auto first = OkValue(ListenSocket::Open("--listen", address));
    EXPECT_TRUE(first.own_user_only());
    EXPECT_THAT(ListenSocket::Open("--listen", address),
                IsError(kUnavailable, "the name is in use"));
  }
  EXPECT_TRUE(ListenSocket::Open("--listen", address).ok());
}

}  // namespace
}  // namespace cohort
