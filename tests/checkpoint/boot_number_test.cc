#include "server/checkpoint/boot_number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kJoins = int64_t{1} << 32;

BootNumber Take(const TempDir& dir,
                std::optional<Incarnation> next = std::nullopt,
                uint32_t chance = 0) {
  const auto boot = TakeBootNumber(RealFileSystem(), dir.path(), next, chance);
  EXPECT_TRUE(boot.ok()) << boot.status();
  return boot.ok() ? *boot : BootNumber();
}

// Boot numbers do not depend on a clock, so setting one back is harmless. Each
// start is above all earlier ones, with or without one of their checkpoints.
TEST(BootNumberTest, EachStartIsAboveAllIncarnationsOfThoseBefore) {
  const TempDir dir;
  const BootNumber first = Take(dir);
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(first.problem, "");
  // Three joins of the first start are in the checkpoint; five happened.
  const Incarnation in_checkpoint(first.first_incarnation().value() + 3);
  const BootNumber second = Take(dir, in_checkpoint);
  EXPECT_EQ(second.first_incarnation().value(), 2 * kJoins);
  // A start that crashed before it listened is followed by one from the same
  // checkpoint, and one without it.
  EXPECT_EQ(Take(dir, in_checkpoint).number, 3);
  EXPECT_EQ(Take(dir).number, 4);
}

TEST(BootNumberTest, ACrashWhileItIsWrittenNeverGivesANumberTwice) {
  for (const bool takes_effect : {false, true}) {
    for (int32_t at = 1; at <= 4; ++at) {
      const TempDir dir;
      Take(dir);
      FaultyFileSystem files({.at = at,
                              .error = absl::InternalError("crash"),
                              .takes_effect = takes_effect,
                              .dead_after = true});
      const auto boot = TakeBootNumber(files, dir.path(), std::nullopt, 0);
      const BootNumber next = Take(dir);
      EXPECT_EQ(next.problem, "") << at;
      // 2 if the number was not returned, and above it if a server may have
      // used it.
      EXPECT_GE(next.number, boot.ok() ? 3 : 2) << at;
    }
  }
}

TEST(BootNumberTest, ACopyOfACheckpointLeapsAheadOfTheOriginal) {
  const TempDir original;
  const BootNumber first = Take(original);
  const Incarnation next(first.first_incarnation().value() + 3);
  // Starts of the original that left no checkpoint.
  Take(original, next);
  Take(original, next);
  const TempDir copy;
  const BootNumber there = Take(copy, next, 77);
  EXPECT_EQ(there.number, 2 + 1 + 77);
  EXPECT_THAT(there.problem, HasSubstr(copy.path() + "/boot: it is missing"));
  const TempDir another;
  EXPECT_NE(Take(another, next, 78).number, there.number);
  // From then on the copy counts on.
  EXPECT_EQ(Take(copy, next, 5).number, there.number + 1);
}

TEST(BootNumberTest, EveryDamageOfTheFileIsNoticedAndPassedOver) {
  const TempDir dir;
  Take(dir);
  const std::string good = ReadText(dir.File("boot"));
  std::set<std::string> bad = {"", good + good, good.substr(0, 20),
                               "cohort-boot 1 -5 0\n"};
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      bad.insert(flipped);
    }
  }
  for (const std::string& text : bad) {
    WriteText(dir.File("boot"), text);
    const BootNumber boot = Take(dir, Incarnation(kJoins + 7), 9);
    EXPECT_EQ(boot.number, 12) << text;
    EXPECT_THAT(boot.problem, HasSubstr("it is damaged"));
  }
}

TEST(BootNumberTest, WhatIsNoFileIsPassedOverToo) {
  const TempDir dir;
  WriteText(dir.File("boot"), std::string(1 << 20, '7'));
  EXPECT_THAT(Take(dir, std::nullopt, 9).problem, HasSubstr("damaged"));
}

TEST(BootNumberTest, ADiskThatCannotBeWrittenIsAnError) {
  const TempDir dir;
  EXPECT_THAT(
      TakeBootNumber(RealFileSystem(), dir.File("none"), std::nullopt, 0),
      IsError(kNotFound, ""));
}

TEST(BootNumberTest, TheLastNumberIsSaid) {
  const TempDir dir;
  const auto boot = TakeBootNumber(RealFileSystem(), dir.path(),
                                   Incarnation(INT64_MAX - 1), 0);
  EXPECT_EQ(boot.status().code(), kFailedPrecondition);
  EXPECT_THAT(std::string(boot.status().message()), HasSubstr("want at most"));
}

}  // namespace
}  // namespace cohort
