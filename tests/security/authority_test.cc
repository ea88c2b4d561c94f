#include "common/security/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/security/certificate.h"
#include "common/security/small_file.h"
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
  const absl::StatusOr<TlsContent> content = ReadTlsFiles(files, absl::Now());
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->identity->Uri(),
            "spiffe://example.org/cohort/demo/worker/3");
  EXPECT_NEAR(absl::ToDoubleHours(content->not_after - absl::Now()), 24, 0.1);
  EXPECT_EQ(ModeOf(files.key), 0600u);
  EXPECT_EQ(ModeOf(authority.File("pki/ca.key")), 0600u);
}

TEST(AuthorityTest, OpenedAgainItIssuesForTheSameDomain) {
  TestAuthority made;
  const absl::StatusOr<Authority> opened =
      Authority::Open(RealFileSystem(), made.File("pki"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->domain(), "example.org");
  const absl::StatusOr<TlsFiles> files = opened->Issue(
      {.domain = "example.org", .run = "demo", .role = PeerRole::kViewer},
      absl::Hours(1));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(ReadTlsFiles(*files, absl::Now()).ok());
}

TEST(AuthorityTest, ServersHaveTheNamesOfTheirMachine) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("server/0");
  const auto text = ReadSmallFile("", files.cert);
  const auto certificates = ParseCertificates("", *text);
  ASSERT_TRUE(certificates.ok());
  EXPECT_THAT(certificates->front().uris,
              ElementsAre("spiffe://example.org/cohort/demo/server/0"));
}

TEST(AuthorityTest, NeverReplacesAnAuthority) {
  TestAuthority made;
  const absl::Status again =
      Authority::Create(RealFileSystem(), made.File("pki"), "example.org",
                        absl::Hours(1))
          .status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("has an authority"));
}

TEST(AuthorityTest, NorOneWhoseKeyIsKeptElsewhere) {
  TestAuthority made;
  ASSERT_EQ(std::rename(made.File("pki/ca.key").c_str(),
                        made.File("elsewhere.key").c_str()),
            0);
  EXPECT_EQ(Authority::Create(RealFileSystem(), made.File("pki"), "example.org",
                              absl::Hours(1))
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
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
  EXPECT_EQ(check("other").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(check("other").message()),
              HasSubstr("got the files of "
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
  const absl::Status late =
      made.authority()
          .Issue({.domain = "example.org", .run = "demo"}, absl::Hours(49))
          .status();
  EXPECT_EQ(late.code(), absl::StatusCode::kInvalidArgument);
}

TEST(AuthorityTest, AMissingOneIsNamed) {
  TestAuthority made;
  const absl::Status missing =
      Authority::Open(RealFileSystem(), made.File("elsewhere")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("certs init"));
}

TEST(AuthorityTest, BadDomainsAreRefused) {
  TestAuthority made;
  EXPECT_EQ(Authority::Create(RealFileSystem(), made.File("other"),
                              "Example Org", absl::Hours(1))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cohort
