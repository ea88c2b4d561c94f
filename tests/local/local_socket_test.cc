#include "server/local/local_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "common/local/packet_socket.h"
#include "common/unix_address.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

// A socket as a killed server leaves it behind.
void LeaveSocket(const std::string& path, int type) {
  const auto address = UnixAddressOf(path);
  const int fd = socket(AF_UNIX, type, 0);
  EXPECT_EQ(bind(fd, address->get(), address->size), 0);
  close(fd);
}

TEST(NewSocketNameTest, IsNewEachTimeAndAbstractWithoutAFolder) {
  std::set<std::string> names;
  for (int i = 0; i < 10; ++i) names.insert(NewSocketName(""));
  EXPECT_EQ(names.size(), 10u);
  EXPECT_TRUE(absl::StartsWith(*names.begin(), "@cohort-"));
}

TEST(NewSocketNameTest, IsAPathFromTheRoot) {
  const TempDir folder;
  const std::string name = NewSocketName(
      std::filesystem::relative(folder.path(), std::filesystem::current_path())
          .string());
  EXPECT_EQ(name.front(), '/');
  EXPECT_TRUE(std::filesystem::equivalent(
      std::filesystem::path(name).parent_path(), folder.path()));
}

TEST(LeftSocketsTest, AreRemovedAndNothingElseIs) {
  const TempDir folder;
  const std::string live = NewSocketName(folder.path());
  const auto listener = OkValue(PacketListener::Open(live));
  WriteText(folder.File("cohort-socket-no"), "");
  LeaveSocket(folder.File("another"), SOCK_STREAM);
  LeaveSocket(NewSocketName(folder.path()), SOCK_STREAM);
  LeaveSocket(NewSocketName(folder.path()), SOCK_SEQPACKET);
  RemoveLeftSockets(folder.path());
  std::set<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    left.insert(file.path().string());
  }
  const std::set<std::string> wanted = {live, folder.File("another"),
                                        folder.File("cohort-socket-no")};
  EXPECT_EQ(left, wanted);
}

TEST(RandomHexTest, HasTheLengthAskedFor) {
  EXPECT_EQ(RandomHex(32).size(), 32u);
  EXPECT_NE(RandomHex(32), RandomHex(32));
}

}  // namespace
}  // namespace cohort
