#include "server/core/membership/registration_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

RegistrationBook::Entry EntryOf(int64_t elements) {
  return {.incarnation = Incarnation(1),
          .layout = {.parameters = {{.name = "w", .shape = {elements}}}}};
}

TEST(RegistrationBookTest, TheLowestIsAskedOnceAllHaveCome) {
  RegistrationBook book;
  EXPECT_FALSE(book.Due(0));
  book.Add(Rank(1), EntryOf(2));
  EXPECT_FALSE(book.Due(2));
  book.Add(Rank(0), EntryOf(2));
  ASSERT_TRUE(book.Due(2));
  EXPECT_EQ(book.AskLowest(), Rank(0));
  EXPECT_EQ(book.asked(), Rank(0));
  EXPECT_FALSE(book.Due(2));
}

TEST(RegistrationBookTest, TheNextIsAskedWithoutWaitingForAllAgain) {
  RegistrationBook book;
  for (int32_t rank : {0, 1, 2}) book.Add(Rank(rank), EntryOf(2));
  book.AskLowest();
  book.Remove(Rank(0));
  ASSERT_TRUE(book.Due(3));
  EXPECT_EQ(book.AskLowest(), Rank(1));
  // A rank that returns gets no request before this one is done.
  book.Add(Rank(0), EntryOf(2));
  EXPECT_FALSE(book.Due(3));
  EXPECT_EQ(book.Ruling()->first, Rank(1));
}

TEST(RegistrationBookTest, OnceAllAreGoneAllAreWaitedForAgain) {
  RegistrationBook book;
  for (int32_t rank : {0, 1}) book.Add(Rank(rank), EntryOf(2));
  book.AskLowest();
  for (int32_t rank : {0, 1}) book.Remove(Rank(rank));
  book.Add(Rank(1), EntryOf(2));
  EXPECT_FALSE(book.Due(2));
}

TEST(RegistrationBookTest, ARepeatedRegistrationWithdrawsTheRequest) {
  RegistrationBook book;
  book.Add(Rank(0), EntryOf(2));
  book.AskLowest();
  book.Add(Rank(0), EntryOf(2));
  EXPECT_EQ(book.asked(), std::nullopt);
  EXPECT_TRUE(book.Due(1));
}

TEST(RegistrationBookTest, ARankThatCanSendNoValuesIsNotAsked) {
  RegistrationBook book;
  for (int32_t rank : {0, 1, 2}) book.Add(Rank(rank), EntryOf(2));
  book.NoteClosed(Rank(0));
  EXPECT_EQ(book.AskLowest(), Rank(1));
  // The one that was asked closes its side, too.
  book.NoteClosed(Rank(1));
  EXPECT_FALSE(book.Contains(Rank(1)));
  ASSERT_TRUE(book.Due(3));
  EXPECT_EQ(book.AskLowest(), Rank(2));
  book.NoteClosed(Rank(2));
  EXPECT_EQ(book.AskLowest(), std::nullopt);
  EXPECT_TRUE(book.Contains(Rank(0)));
}

TEST(RegistrationBookTest, TheLowestRanksModelRules) {
  RegistrationBook book;
  book.Add(Rank(0), EntryOf(2));
  book.Add(Rank(1), EntryOf(3));
  book.Add(Rank(2), EntryOf(2));
  const auto different = book.TakeDifferent();
  ASSERT_EQ(different.size(), 1);
  EXPECT_THAT(different.at(Rank(1)),
              IsError(kFailedPrecondition, "w: got shape [3], want [2]"));
  EXPECT_FALSE(book.Contains(Rank(1)));
  EXPECT_FALSE(book.Due(3));
}

}  // namespace
}  // namespace cohort
