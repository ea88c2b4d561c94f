#include "common/security/tls_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/mutex.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

// The reports of a watcher, and a wait for the next one.
class Reports {
 public:
  void Add(const std::string& text) {
    MutexLock lock(mu_);
    texts_.push_back(text);
    changed_.NotifyAll();
  }
  std::string Await(size_t number) {
    MutexLock lock(mu_);
    while (texts_.size() <= number) changed_.Wait(mu_);
    return texts_[number];
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
};

TEST(TlsWatcherTest, TakesNewFilesAndKeepsGoodOnesOtherwise) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("worker/0");
  const absl::StatusOr<TlsContent> first = ReadTlsFiles(files, absl::Now());
  ASSERT_TRUE(first.ok());
  Reports changes;
  Reports messages;
  TlsWatcher watcher(
      files, *first,
      [&](const TlsContent& content) { changes.Add(content.cert); },
      [&](bool fault, const std::string& text) {
        messages.Add((fault ? "fault: " : "") + text);
      });

  authority.Issue("worker/0", "demo", absl::Hours(40));
  EXPECT_EQ(changes.Await(0), ReadTlsFiles(files, absl::Now())->cert);
  EXPECT_THAT(messages.Await(0), HasSubstr("new TLS files are in use"));
  const absl::Time end = watcher.not_after();
  EXPECT_GT(end, first->not_after);

  // The files of another identity in the same place.
  ASSERT_TRUE(WriteFileAtomically(RealFileSystem(), files.cert, kPublicFileMode,
                                  {ByteRope::CopyText("no certificate")})
                  .ok());
  EXPECT_THAT(messages.Await(1),
              HasSubstr("fault: the TLS files cannot be used"));
  EXPECT_EQ(watcher.not_after(), end);
}

}  // namespace
}  // namespace cohort
