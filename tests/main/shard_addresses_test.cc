// --shard_addresses, as a list and with ranges.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/main/server_options.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> Parsed(absl::string_view text) {
  const absl::StatusOr<std::vector<std::string>> parsed =
      ParseShardAddresses(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(std::vector<std::string>());
}

std::string Refusal(absl::string_view text) {
  const absl::Status status = ParseShardAddresses(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ParseShardAddressesTest, AListKeepsItsOrder) {
  EXPECT_THAT(Parsed(""), IsEmpty());
  EXPECT_THAT(Parsed("b:1, ,a:2,\n c:3 "), ElementsAre("b:1", "a:2", "c:3"));
  // One server would be started in place of many.
  EXPECT_THAT(Refusal(", ,"), HasSubstr("without an address"));
}

TEST(ParseShardAddressesTest, ARangeStandsForItsNumbers) {
  EXPECT_THAT(Parsed("shard-[9-11].shard:7070,last:1,x[0-0]:2"),
              ElementsAre("shard-9.shard:7070", "shard-10.shard:7070",
                          "shard-11.shard:7070", "last:1", "x0:2"));
}

TEST(ParseShardAddressesTest, OtherBracketsStay) {
  // An address of IPv6, and mistakes that the check of addresses names.
  for (const std::string address :
       {"[fe80::1]:7070", "[1]:7070", "[1-2-3]:7070", "[a-b]:7070",
        "[-1-2]:7070", "[1-2:7070", "1-2]:7070"}) {
    EXPECT_THAT(Parsed(address), ElementsAre(address));
  }
}

TEST(ParseShardAddressesTest, RangesThatCannotBeAreNamed) {
  EXPECT_THAT(Refusal("a:1,shard-[3-1]:7070"), HasSubstr("shard-[3-1]:7070"));
  EXPECT_THAT(Parsed("a[1-1024]:1"), SizeIs(1024));
  EXPECT_THAT(Refusal("a[1-1024]:1,b:1"), HasSubstr("more than 1024"));
  EXPECT_THAT(Refusal("a[0-2147483647]:1"), HasSubstr("more than 1024"));
}

}  // namespace
}  // namespace cohort
