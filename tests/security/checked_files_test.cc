#include "common/security/checked_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

std::string TextOf(std::istream& file) {
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CheckedFilesTest, PathsHaveTheNewestContent) {
  const auto files = OkValue(
      CheckedFiles::Create({.cert = "cert 1", .key = "key 1", .ca = "ca 1"}));
  const std::string own = files->cert_and_key_path();
  const std::string ca = files->ca_path();
  std::ifstream earlier(own);
  ExpectOk(files->Replace({.cert = "cert 2", .key = "key 2", .ca = "ca 2"}));
  std::ifstream later(own);
  std::ifstream authorities(ca);
  // A reader that came before continues with the pair that it opened.
  EXPECT_EQ(TextOf(earlier), "cert 1\nkey 1");
  EXPECT_EQ(TextOf(later), "cert 2\nkey 2");
  EXPECT_EQ(TextOf(authorities), "ca 2");
}

TEST(CheckedFilesTest, WithoutACertificateThereAreOnlyAuthorities) {
  const auto files = OkValue(CheckedFiles::Create({.ca = "ca"}));
  EXPECT_EQ(files->cert_and_key_path(), "");
  std::ifstream authorities(files->ca_path());
  EXPECT_EQ(TextOf(authorities), "ca");
}

}  // namespace
}  // namespace cohort
