#include "common/security/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "common/security/certificate.h"
#include "common/security/small_file.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
  return found.st_mode & 0777;
}

TEST(AuthorityTest, IssuesFilesThatBelongTogether) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("worker/3");
  const TlsContent content = OkValue(ReadTlsFiles(files, absl::Now()));
  EXPECT_EQ(content.identity->Uri(),
            "spiffe://example.org/cohort/demo/worker/3");
  EXPECT_NEAR(absl::ToDoubleHours(content.not_after - absl::Now()), 24, 0.1);
  EXPECT_EQ(ModeOf(files.key), 0600u);
  EXPECT_EQ(ModeOf(authority.File("pki/ca.key")), 0600u);
}

TEST(AuthorityTest, OpenedAgainItIssuesForTheSameDomain) {
  TestAuthority made;
  const Authority opened =
      OkValue(Authority::Open(RealFileSystem(), made.File("pki")));
  EXPECT_EQ(opened.domain(), "example.org");
  const TlsFiles files = OkValue(opened.Issue(
      {.domain = "example.org", .run = "demo", .role = PeerRole::kViewer},
      absl::Hours(1)));
  EXPECT_TRUE(ReadTlsFiles(files, absl::Now()).ok());
}

TEST(AuthorityTest, ServersHaveTheNamesOfTheirMachine) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("server/0");
  const auto text = ReadSmallFile("", files.cert);
  const auto certificates = OkValue(ParseCertificates("", *text));
  EXPECT_THAT(certificates.front().uris,
              ElementsAre("spiffe://example.org/cohort/demo/server/0"));
}

TEST(AuthorityTest, NeverReplacesAnAuthority) {
  TestAuthority made;
  EXPECT_THAT(Authority::Create(RealFileSystem(), made.File("pki"),
                                "example.org", absl::Hours(1)),
              IsError(kFailedPrecondition, "has an authority"));
}

TEST(AuthorityTest, NorOneWhoseKeyIsKeptElsewhere) {
  TestAuthority made;
  ASSERT_EQ(std::rename(made.File("pki/ca.key").c_str(),
                        made.File("elsewhere.key").c_str()),
            0);
  EXPECT_THAT(Authority::Create(RealFileSystem(), made.File("pki"),
                                "example.org", absl::Hours(1)),
              IsError(kFailedPrecondition, ""));
}

TEST(AuthorityTest, KnowsWhoseFilesAreThere) {
  TestAuthority made;
  const auto check = [&made](const std::string& run) {
    return made.authority().CheckFree({.domain = "example.org",
                                       .run = run,
                                       .role = PeerRole::kServer,
                                       .number = 0});
  };
  EXPECT_TRUE(check("demo").ok());
  made.Issue("server/0", "demo");
  EXPECT_TRUE(check("demo").ok());
  EXPECT_THAT(check("other"),
              IsError(kFailedPrecondition,
                      "got the files of "
                      "spiffe://example.org/cohort/demo/server/0"));
}

TEST(AuthorityTest, EachHasANameOfItsOwn) {
  TestAuthority one;
  TestAuthority two;
  const auto issuer = [](TestAuthority& authority) {
    const auto text = ReadSmallFile("", authority.Issue("viewer").cert);
    return ParseCertificates("", *text)->front().issuer;
  };
  EXPECT_THAT(issuer(one), HasSubstr("CN = Cohort authority example.org "));
  EXPECT_NE(issuer(one), issuer(two));
}

TEST(AuthorityTest, NothingOutlivesTheAuthority) {
  TestAuthority made;
  EXPECT_THAT(made.authority().Issue({.domain = "example.org", .run = "demo"},
                                     absl::Hours(49)),
              IsError(kInvalidArgument, ""));
}

TEST(AuthorityTest, AMissingOneIsNamed) {
  TestAuthority made;
  EXPECT_THAT(Authority::Open(RealFileSystem(), made.File("elsewhere")),
              IsError(kFailedPrecondition, "certs init"));
}

TEST(AuthorityTest, BadDomainsAreRefused) {
  TestAuthority made;
  EXPECT_THAT(Authority::Create(RealFileSystem(), made.File("other"),
                                "Example Org", absl::Hours(1)),
              IsError(kInvalidArgument, ""));
}

}  // namespace
}  // namespace cohort
