#include "common/dns_label.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DnsLabelTest, LabelsPass) {
  for (const std::string& text :
       {std::string("a"), std::string("7"), std::string("run-3fa9c2d41b07"),
        std::string("a--b"), std::string(63, 'x')}) {
    EXPECT_TRUE(CheckDnsLabel("--run_name", text).ok()) << text;
  }
}

TEST(DnsLabelTest, OthersAreNamedWithWhatIsWanted) {
  for (const std::string& text :
       {std::string(), std::string("-a"), std::string("a-"), std::string("A"),
        std::string("a.b"), std::string("a_b"), std::string("a b"),
        std::string("\xc3\xa4"), std::string("a\n"), std::string(64, 'x'),
        std::string("a\0b", 3)}) {
    const absl::Status status = CheckDnsLabel("--run_name", text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith("--run_name: got '"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("want a DNS label"));
  }
}

TEST(DnsLabelTest, WhatIsShownIsPrintable) {
  EXPECT_THAT(std::string(CheckDnsLabel("f", "a\x1b[2J").message()),
              HasSubstr("got 'a\\x1b[2J'"));
}

}  // namespace
}  // namespace cohort
