#include "common/progress_report.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

class ProgressReportTest : public ::testing::Test {
 protected:
  ProgressReportTest() {
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data());
    struct stat what = {};
    fstat(ends_[1], &what);
    inode_ = what.st_ino;
  }
  ~ProgressReportTest() override {
    unsetenv(kProgressVariable.data());
    close(ends_[0]);
    close(ends_[1]);
  }

  static void Set(const std::string& value) {
    setenv(kProgressVariable.data(), value.c_str(), 1);
  }
  ssize_t Received() {
    std::array<char, 8> bytes = {};
    return recv(ends_[0], bytes.data(), bytes.size(), MSG_DONTWAIT);
  }

  std::array<int, 2> ends_ = {};
  uint64_t inode_ = 0;
};

TEST_F(ProgressReportTest, SendsOneByteForTheFirstStep) {
  Set(absl::StrCat(ends_[1], ":", inode_));
  ProgressReport report;
  EXPECT_EQ(Received(), -1);
  report.Made();
  report.Made();
  EXPECT_EQ(Received(), 1);
}

TEST_F(ProgressReportTest, DoesNothingWithoutASupervisor) {
  ProgressReport().Made();
  Set("seven");
  ProgressReport().Made();
  Set("99999:1");
  ProgressReport().Made();
  EXPECT_EQ(Received(), -1);
}

TEST_F(ProgressReportTest, ANumberThatIsAnotherFileByNowIsLeftAlone) {
  Set(absl::StrCat(ends_[1], ":", inode_ + 1));
  ProgressReport().Made();
  EXPECT_EQ(Received(), -1);
}

TEST_F(ProgressReportTest, ASupervisorThatIsGoneEndsNobody) {
  Set(absl::StrCat(ends_[1], ":", inode_));
  ProgressReport report;
  shutdown(ends_[0], SHUT_RDWR);
  // Without a handler SIGPIPE would end this process.
  report.Made();
}

}  // namespace
}  // namespace cohort
