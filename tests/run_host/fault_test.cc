// Exceptions inside a shard.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "common/exit_codes.h"
#include "server/run/run_host.h"
#include "tests/run_host/run_host_fakes.h"

namespace cohort {
namespace {

class NotedSession final : public SessionStream {
 public:
  explicit NotedSession(bool fails) : fails_(fails) {}
  void SendJoined(const effect::Joined&) override {
    if (fails_) throw std::bad_alloc();
    joined = true;
  }
  void SendAssignment(const Assignment&) override {}
  void SendStepAborted(const effect::StepAborted&) override {}
  void End(const absl::Status& status) override { ended = status; }

  bool joined = false;
  absl::Status ended;

 private:
  const bool fails_;
};

JoinRequest JoinAs(int32_t rank) {
  return {.rank = Rank(rank), .run_id = "run", .batch_size = 2};
}

TEST(ShardFaultTest, StreamThatCannotBeToldEndsAloneAndOthersAreServed) {
  SilentListener listener;
  const MovedClock clock;
  RunHost shard(TinyRunHostOptions(/*workers=*/2), nullptr, clock, listener);
  shard.Start("here");
  const auto broken = std::make_shared<NotedSession>(true);
  const auto whole = std::make_shared<NotedSession>(false);
  ASSERT_TRUE(shard.Join(*shard.AdmitSession(broken), JoinAs(0)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(broken->ended));
  ASSERT_TRUE(shard.Join(*shard.AdmitSession(whole), JoinAs(1)).ok());
  EXPECT_TRUE(whole->joined);
}

// Throws in an effect that concerns no single peer.
class ThrowingListener final : public SilentListener {
 public:
  void OnLogged(const effect::Log&) override {
    throw std::length_error("too long");
  }
};

TEST(ShardFaultDeathTest, EffectThatFailsEndsTheProcessWithItsOwnCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ThrowingListener listener;
  const MovedClock clock;
  EXPECT_EXIT(
      {
        RunHost shard(TinyRunHostOptions(/*workers=*/2), nullptr, clock,
                      listener);
        shard.Start("here");
        static_cast<void>(shard.Drain("a test"));
      },
      ::testing::ExitedWithCode(kExitHalfDone), "effect.*too long");
}

}  // namespace
}  // namespace cohort
