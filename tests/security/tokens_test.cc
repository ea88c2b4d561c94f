#include "common/security/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TokensTest : public testing::Test {
 protected:
  void Write(const std::string& text) const {
    std::ofstream(path_, std::ios::trunc) << text;
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("tokens");
};

TEST_F(TokensTest, HashesAreThoseOfTheStandard) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(TokenHash("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(TokensTest, KnownTokensHaveANameAndOthersNone) {
  Write("# tokens\n\ngrafana " + TokenHash("secret") + "\nana " +
        TokenHash("other") + "\n");
  const auto tokens = OkValue(Tokens::Load(path_));
  EXPECT_TRUE(tokens->any());
  EXPECT_EQ(tokens->NameOf("secret"), "grafana");
  EXPECT_EQ(tokens->NameOf("other"), "ana");
  EXPECT_EQ(tokens->NameOf("Secret"), "");
  EXPECT_EQ(tokens->NameOf(""), "");
  EXPECT_EQ(tokens->NameOf(TokenHash("secret")), "");
  EXPECT_EQ(tokens->NameOf(std::string(2000, 'x')), "");
}

TEST_F(TokensTest, ChangesAreReadAgainAndBadOnesChangeNothing) {
  Write("ana " + TokenHash("one") + "\n");
  const auto tokens = OkValue(Tokens::Load(path_));
  Write("ana " + TokenHash("two") + "\n");
  EXPECT_TRUE(tokens->Refresh().ok());
  EXPECT_EQ(tokens->NameOf("one"), "");
  EXPECT_EQ(tokens->NameOf("two"), "ana");
  Write("ana clear-text-token\n");
  const absl::Status bad = tokens->Refresh();
  EXPECT_THAT(std::string(bad.message()), HasSubstr("line 1"));
  EXPECT_THAT(std::string(bad.message()), Not(HasSubstr("clear-text-token")));
  EXPECT_THAT(bad, IsError(kInvalidArgument, "remain valid"));
  EXPECT_EQ(tokens->NameOf("two"), "ana");
}

TEST_F(TokensTest, WithoutAFileThereAreNone) {
  const auto tokens = OkValue(Tokens::Load(""));
  EXPECT_FALSE(tokens->any());
  EXPECT_EQ(tokens->NameOf("x"), "");
  EXPECT_FALSE(Tokens::Load(dir_.File("missing")).ok());
}

TEST_F(TokensTest, NewOnesDiffer) {
  const absl::StatusOr<std::string> one = NewToken();
  const absl::StatusOr<std::string> two = NewToken();
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->size(), 43u);
  EXPECT_NE(*one, *two);
}

}  // namespace
}  // namespace cohort
