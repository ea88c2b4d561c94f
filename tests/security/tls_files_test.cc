#include "common/security/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

std::string Error(const TlsFiles& files, absl::Time now = absl::Now()) {
  const absl::StatusOr<TlsContent> content = ReadTlsFiles(files, now);
  EXPECT_EQ(content.status().code(), kInvalidArgument);
  return std::string(content.status().message());
}

TEST(TlsFilesTest, NoFilesMeanPlaintext) {
  const TlsContent content = OkValue(ReadTlsFiles({}, absl::Now()));
  EXPECT_FALSE(content.identity.has_value());
  EXPECT_EQ(content.not_after, absl::InfiniteFuture());
}

TEST(TlsFilesTest, AnAuthorityAloneIsEnoughForAClient) {
  TestAuthority authority;
  const TlsFiles files{.ca = authority.Issue("viewer").ca};
  const TlsContent content = OkValue(ReadTlsFiles(files, absl::Now()));
  EXPECT_FALSE(content.identity.has_value());
}

TEST(TlsFilesTest, MissingFlagsAreNamed) {
  EXPECT_THAT(Error({.cert = "a", .ca = "b"}), HasSubstr("want --tls_key too"));
  EXPECT_THAT(Error({.key = "a", .ca = "b"}), HasSubstr("want --tls_cert too"));
  EXPECT_THAT(Error({.cert = "a", .key = "b"}), HasSubstr("want --tls_ca too"));
}

TEST(TlsFilesTest, UnusableFilesAreNamed) {
  TestAuthority authority;
  const TlsFiles good = authority.Issue("worker/0");
  TlsFiles files = good;
  files.ca = authority.File("missing");
  EXPECT_THAT(Error(files), HasSubstr("missing cannot be read: No such file"));
  files = good;
  std::ofstream(authority.File("empty")).close();
  files.cert = authority.File("empty");
  EXPECT_THAT(Error(files), HasSubstr("no readable certificate"));
  EXPECT_THAT(Error(files), HasSubstr(files.cert));
  files = good;
  files.key = authority.Issue("worker/1").key;
  EXPECT_THAT(Error(files), HasSubstr("--tls_key: got a key that does not"));
  EXPECT_THAT(Error(good, absl::Now() + absl::Hours(25)),
              HasSubstr("has expired"));
  TestAuthority other;
  files = good;
  files.ca = other.File("pki/ca.crt");
  EXPECT_THAT(Error(files), HasSubstr("local issuer"));
}

TEST(TlsFilesTest, FollowsLinksAsSecretsAreMounted) {
  TestAuthority authority;
  const TlsFiles good = authority.Issue("worker/0");
  TlsFiles links{.cert = authority.File("tls.crt"),
                 .key = authority.File("tls.key"),
                 .ca = authority.File("ca.crt")};
  std::filesystem::create_symlink(good.cert, links.cert);
  std::filesystem::create_symlink(good.key, links.key);
  std::filesystem::create_symlink(good.ca, links.ca);
  EXPECT_TRUE(ReadTlsFiles(links, absl::Now()).ok());
}

}  // namespace
}  // namespace cohort
