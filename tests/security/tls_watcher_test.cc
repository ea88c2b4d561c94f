#include "common/security/tls_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "tests/fakes/reports.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Overwrite(const std::string& path, const std::string& text) {
  ExpectOk(WriteFileAtomically(RealFileSystem(), path, kPublicFileMode,
                               {ByteRope::CopyText(text)}));
}

// A watcher of the files of worker 0 with its reports.
struct Watched {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("worker/0");
  const TlsContent first = *ReadTlsFiles(files, absl::Now());
  Reports<std::string> changes;
  Reports<std::string> messages;
  TlsWatcher watcher{files, first,
                     [this](const TlsContent& content) {
                       changes.Add(content.cert);
                       return absl::OkStatus();
                     },
                     [this](bool fault, const std::string& text) {
                       messages.Add((fault ? "fault: " : "") + text);
                     }};
};

TEST(TlsWatcherTest, TakesNewFilesAndKeepsGoodOnesOtherwise) {
  Watched watched;
  watched.authority.Issue("worker/0", "demo", absl::Hours(40));
  EXPECT_EQ(watched.changes.Await(0),
            ReadTlsFiles(watched.files, absl::Now())->cert);
  EXPECT_THAT(watched.messages.Await(0), HasSubstr("new TLS files are in use"));
  const absl::Time end = watched.watcher.not_after();
  EXPECT_GT(end, watched.first.not_after);

  Overwrite(watched.files.cert, "no certificate");
  EXPECT_THAT(watched.messages.Await(1), HasSubstr("TLS files"));
  EXPECT_EQ(watched.watcher.not_after(), end);
}

TEST(TlsWatcherTest, ReportsTheEndOfAFault) {
  Watched watched;
  Overwrite(watched.files.key, "no key");
  EXPECT_THAT(watched.messages.Await(0), HasSubstr("--tls_key"));
  Overwrite(watched.files.key, watched.first.key);
  EXPECT_THAT(watched.messages.Await(1), HasSubstr("can be used again"));
  EXPECT_EQ(watched.watcher.content(), watched.first);
}

TEST(TlsWatcherTest, RefusesTheCertificateOfAnotherRun) {
  Watched watched;
  watched.authority.Issue("worker/0", "other");
  EXPECT_THAT(
      watched.messages.Await(0),
      AllOf(HasSubstr("fault: "), HasSubstr("cohort/other/worker/0"),
            HasSubstr("cohort/demo/worker/0"), HasSubstr("stays in use")));
  EXPECT_EQ(watched.watcher.content(), watched.first);
}

}  // namespace
}  // namespace cohort
