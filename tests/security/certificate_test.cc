#include "common/security/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "common/security/small_file.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Text(const std::string& path) {
  return ReadSmallFile("", path).value();
}

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(CertificateTest, ChainsAreReadInOrder) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("viewer");
  const auto both =
      OkValue(ParseCertificates("both", Text(files.cert) + Text(files.ca)));
  ASSERT_THAT(both, SizeIs(2));
  EXPECT_EQ(both[0].issuer, both[1].subject);
  EXPECT_THAT(both[0].subject, HasSubstr("demo viewer"));
}

TEST(CertificateTest, TextsWithoutCertificatesAreNamed) {
  for (const std::string text :
       {"", "hello", "-----BEGIN CERTIFICATE-----\nx"}) {
    const absl::Status bad = ParseCertificates("--tls_ca", text).status();
    EXPECT_EQ(bad.code(), kInvalidArgument);
    EXPECT_THAT(MessageOf(bad), HasSubstr("--tls_ca: got no readable"));
  }
}

TEST(CertificateTest, ChainsEndAtAKnownAuthority) {
  TestAuthority authority;
  TestAuthority other;
  const TlsFiles files = authority.Issue("viewer");
  ExpectOk(CheckChain("it", Text(files.cert), Text(files.ca), absl::Now()));
  const absl::Status foreign = CheckChain(
      "it", Text(files.cert), Text(other.File("pki/ca.crt")), absl::Now());
  EXPECT_THAT(MessageOf(foreign), HasSubstr("local issuer"));
  const absl::Status late = CheckChain("it", Text(files.cert), Text(files.ca),
                                       absl::Now() + absl::Hours(25));
  EXPECT_THAT(MessageOf(late), HasSubstr("expired"));
  const absl::Status early = CheckChain("it", Text(files.cert), Text(files.ca),
                                        absl::Now() - absl::Hours(1));
  EXPECT_THAT(MessageOf(early), HasSubstr("not yet valid"));
}

TEST(CertificateTest, KeysBelongToTheirCertificate) {
  TestAuthority authority;
  const TlsFiles one = authority.Issue("viewer");
  const TlsFiles two = authority.Issue("operator");
  EXPECT_TRUE(CheckKey(Text(one.cert), Text(one.key)).ok());
  EXPECT_THAT(MessageOf(CheckKey(Text(one.cert), Text(two.key))),
              HasSubstr("does not belong"));
  EXPECT_THAT(MessageOf(CheckKey(Text(one.cert), "no key")),
              HasSubstr("no readable key"));
}

TEST(CertificateTest, AnIdentityIsExactlyOne) {
  const Certificate none{.subject = "CN = x"};
  EXPECT_THAT(MessageOf(IdentityOf("--tls_cert", none).status()),
              HasSubstr("without a URI"));
  const Certificate foreign{.subject = "CN = x",
                            .uris = {"https://example.org"}};
  EXPECT_THAT(MessageOf(IdentityOf("--tls_cert", foreign).status()),
              HasSubstr("https://example.org"));
  const Certificate two{
      .uris = {"spiffe://a/cohort/b/viewer", "spiffe://a/cohort/b/operator"}};
  EXPECT_THAT(MessageOf(IdentityOf("--tls_cert", two).status()),
              HasSubstr("want exactly one"));
}

TEST(CertificateTest, DamagedDerIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(ParseDerCertificate("damage").status()));
}

}  // namespace
}  // namespace cohort
