// The state that programs keep beside the model: who sends it, who gets it, and
// when it is lost.

#include "server/run/kept_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Kind = KeptStates::Answer::Kind;

constexpr Rank kFirst{0};
constexpr Rank kSecond{1};
constexpr Version kFrom{1};

RunState StateOf(Version version, SharedText kept = nullptr) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = version;
  return {.snapshot = snapshot, .kept_state = kept, .kept_moves_from = kFrom};
}

KeptStates::Request RequestOf(Rank rank, Version version,
                              int64_t incarnation = 1) {
  return {.rank = rank,
          .incarnation = Incarnation(incarnation),
          .version = version,
          .members = 2};
}

Sender SenderOf(Rank rank) {
  return {.run_id = "run", .rank = rank, .incarnation = Incarnation(1)};
}

bool Hold(KeptStates& states, Rank rank, Version version, bool last = false) {
  return OkValue(states.Hold(
      SenderOf(rank), {.version = version, .moves_from = kFrom, .last = last}));
}

KeptStates::Receipt Give(KeptStates& states, Rank rank, Version version,
                         const std::string& bytes) {
  return OkValue(states.Give(rank, {.version = version,
                                    .total = static_cast<int64_t>(bytes.size()),
                                    .bytes = bytes}));
}

Kind KindOf(KeptStates& states, const KeptStates::Request& request) {
  return OkValue(states.Take(request)).kind;
}

TEST(KeptStatesTest, AnOrdinaryStepSendsNothing) {
  KeptStates states;
  EXPECT_FALSE(Hold(states, kFirst, Version(0)));
  EXPECT_FALSE(Hold(states, kFirst, Version(1)));
  EXPECT_FALSE(Hold(states, kFirst, Version(2)));
}

TEST(KeptStatesTest, AReplacementGetsItFromAMemberThatBeginsAgain) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(5))), Kind::kRepeat);
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(5))), Kind::kAwaited);
  EXPECT_TRUE(Hold(states, kFirst, Version(5)));
  EXPECT_TRUE(Give(states, kFirst, Version(5), "state").enough);
  const absl::StatusOr<KeptStates::Answer> answer =
      states.Take(RequestOf(kSecond, Version(5)));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->kind, Kind::kHere);
  EXPECT_EQ(answer->piece, "state");
  EXPECT_EQ(answer->total, 5);
  EXPECT_EQ(answer->moves_from, kFrom);
}

TEST(KeptStatesTest, BeforeItMovesItIsTheInitialOne) {
  KeptStates states;
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(3))), Kind::kInitial);
  ASSERT_TRUE(states
                  .Hold(SenderOf(kFirst),
                        {.version = Version(3), .moves_from = Version(4)})
                  .ok());
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(3))), Kind::kInitial);
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(4))), Kind::kRepeat);
}

TEST(KeptStatesTest, ItIsLostOnceAllMembersAskForIt) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(5))), Kind::kRepeat);
  // The first is replaced, too.
  EXPECT_EQ(KindOf(states, RequestOf(kFirst, Version(5), 2)), Kind::kLost);
}

// A third rank has asked and is lost. The first still has the state.
TEST(KeptStatesTest, OneThatIsGoneIsNotCountedAsOneThatLacksIt) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  KeptStates::Request request = RequestOf(Rank(2), Version(5));
  request.members = 3;
  EXPECT_EQ(KindOf(states, request), Kind::kRepeat);
  request = RequestOf(kSecond, Version(5), 2);
  request.attempt = Attempt(2);
  EXPECT_EQ(KindOf(states, request), Kind::kRepeat);
  request.attempt = Attempt(3);
  EXPECT_EQ(KindOf(states, request), Kind::kAwaited);
  EXPECT_TRUE(Hold(states, kFirst, Version(5)));
}

TEST(KeptStatesTest, AMemberThatHasItIsNotCountedAsOneThatLacksIt) {
  KeptStates states;
  Hold(states, kFirst, Version(4));
  EXPECT_EQ(KindOf(states, RequestOf(kFirst, Version(5))), Kind::kRepeat);
  Hold(states, kFirst, Version(5));
  EXPECT_EQ(KindOf(states, RequestOf(kSecond, Version(5))), Kind::kRepeat);
}

// The first dies while it sends; the second begins again and sends all of it.
TEST(KeptStatesTest, AnotherMemberSendsItIfTheSenderDies) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  states.Want(Version(5));
  EXPECT_TRUE(Hold(states, kFirst, Version(5)));
  EXPECT_FALSE(Hold(states, kSecond, Version(5)));
  ASSERT_TRUE(
      states.Give(kFirst, {.version = Version(5), .total = 4, .bytes = "ab"})
          .ok());
  EXPECT_EQ(KindOf(states, RequestOf(kFirst, Version(5), 2)), Kind::kRepeat);
  EXPECT_TRUE(Hold(states, kSecond, Version(5)));
  Give(states, kSecond, Version(5), "abcd");
  EXPECT_EQ(states.Take(RequestOf(kFirst, Version(5), 2))->piece, "abcd");
}

TEST(KeptStatesTest, ItComesInPiecesAndGoesInPieces) {
  KeptStates states;
  const std::string bytes(KeptStates::kPieceBytes + 3, 'x');
  Hold(states, kFirst, Version(5));
  states.Want(Version(5));
  Hold(states, kFirst, Version(5));
  const auto total = static_cast<int64_t>(bytes.size());
  EXPECT_FALSE(states
                   .Give(kFirst, {.version = Version(5),
                                  .total = total,
                                  .bytes = bytes.substr(3)})
                   ->enough);
  EXPECT_FALSE(states
                   .Give(kFirst, {.version = Version(5),
                                  .offset = 1,
                                  .total = total,
                                  .bytes = "abc"})
                   .ok());
  EXPECT_TRUE(states
                  .Give(kFirst, {.version = Version(5),
                                 .offset = total - 3,
                                 .total = total,
                                 .bytes = "abc"})
                  ->enough);
  KeptStates::Request request = RequestOf(kSecond, Version(5));
  request.offset = KeptStates::kPieceBytes;
  EXPECT_EQ(states.Take(request)->piece, "abc");
  request.offset = total;
  EXPECT_THAT(states.Take(request).status(),
              IsError(kInvalidArgument, "offset"));
}

TEST(KeptStatesTest, RefusesMoreThanTheLimit) {
  KeptStates states;
  for (const int64_t total : {KeptStates::kBytesMax + 1, INT64_MIN}) {
    EXPECT_THAT(
        states
            .Give(kFirst, {.version = Version(5), .total = total, .bytes = "a"})
            .status(),
        IsError(kResourceExhausted, absl::StrCat(total)));
  }
}

// ---- checkpoints

TEST(KeptStatesTest, ACheckpointBeforeItMovesNeedsNone) {
  KeptStates states;
  EXPECT_EQ(states.Complete(StateOf(Version(7)))->kept_state, nullptr);
  states
      .Hold(SenderOf(kFirst), {.version = Version(7), .moves_from = Version(8)})
      .IgnoreError();
  EXPECT_FALSE(states.Lacks(Version(7)));
  EXPECT_EQ(states.Complete(StateOf(Version(7)))->kept_state, nullptr);
  EXPECT_TRUE(states.Lacks(Version(8)));
}

TEST(KeptStatesTest, ACheckpointHasTheStateOfItsVersion) {
  KeptStates states;
  Hold(states, kFirst, Version(4));
  states.Want(Version(5));
  EXPECT_TRUE(Hold(states, kFirst, Version(5)));
  EXPECT_FALSE(Give(states, kFirst, Version(5), "five").awaits_run);
  const absl::StatusOr<RunState> state = states.Complete(StateOf(Version(5)));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(*state->kept_state, "five");
  EXPECT_EQ(state->kept_moves_from, kFrom);
}

// It was asked for within a step, so its state is not sent any more.
TEST(KeptStatesTest, ACheckpointThatCameTooLateIsOneOfTheNextVersion) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  absl::StatusOr<RunState> state;
  std::thread writer([&] { state = states.Complete(StateOf(Version(5))); });
  Version version(6);
  while (!Hold(states, kFirst, version)) version = version.Next();
  EXPECT_TRUE(Give(states, kFirst, version, "later").awaits_run);
  states.Capture(StateOf(version));
  writer.join();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->snapshot->version, version);
  EXPECT_EQ(*state->kept_state, "later");
}

TEST(KeptStatesTest, AWaitEndsWithItsPatience) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  EXPECT_THAT(
      states.Complete(StateOf(Version(5)), absl::Milliseconds(1)).status(),
      IsError(kUnavailable, "step 5"));
  // The next one has it at once.
  EXPECT_TRUE(Hold(states, kFirst, Version(6)));
  Give(states, kFirst, Version(6), "six");
  EXPECT_EQ(*states.Complete(StateOf(Version(6)))->kept_state, "six");
}

TEST(KeptStatesTest, AWaitEndsWithTheServer) {
  KeptStates states;
  Hold(states, kFirst, Version(5));
  states.Close();
  EXPECT_THAT(states.Complete(StateOf(Version(5))).status(),
              IsError(kUnavailable, "step 5"));
}

TEST(KeptStatesTest, AMemberThatBeginsNoFurtherStepSendsItOnce) {
  KeptStates states;
  EXPECT_TRUE(Hold(states, kFirst, Version(9), /*last=*/true));
  EXPECT_FALSE(Hold(states, kSecond, Version(9), /*last=*/true));
}

TEST(KeptStatesTest, ARestoredRunHasThatOfItsCheckpoint) {
  KeptStates states;
  states.Restore(
      StateOf(Version(5), std::make_shared<const std::string>("five")));
  EXPECT_EQ(states.Take(RequestOf(kFirst, Version(5)))->piece, "five");
  EXPECT_EQ(*states.Complete(StateOf(Version(5)))->kept_state, "five");
}

TEST(KeptStatesTest, RefusesToContinueACheckpointThatShouldHaveHadOne) {
  KeptStates states;
  states.Restore(StateOf(Version(5)));
  EXPECT_THAT(
      states
          .Hold(SenderOf(kFirst), {.version = Version(5), .moves_from = kFrom})
          .status(),
      IsError(kFailedPrecondition, "step 5"));
  // It begins to move now.
  EXPECT_TRUE(states
                  .Hold(SenderOf(kFirst),
                        {.version = Version(5), .moves_from = Version(6)})
                  .ok());
}

}  // namespace
}  // namespace cohort
