#include "worker/client/bulk_call.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <semaphore>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/wire/channel.h"
#include "common/wire/framed_message.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr absl::Duration kPatience = absl::Hours(10);
constexpr int kMessages = 5;

// Goes on as time does, and jumps.
class JumpingClock final : public Clock {
 public:
  Instant Now() const override {
    MutexLock lock(mu_);
    ++asked_;
    changed_.NotifyAll();
    return steady_.Now() + jumped_;
  }
  void Jump(absl::Duration by) {
    MutexLock lock(mu_);
    jumped_ += by;
  }
  int64_t asked() const {
    MutexLock lock(mu_);
    return asked_;
  }
  // Returns once it was asked more often than that.
  void AwaitAsked(int64_t before) const {
    MutexLock lock(mu_);
    while (asked_ == before) changed_.Wait(mu_);
  }

 private:
  SteadyClock steady_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  mutable int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration jumped_ ABSL_GUARDED_BY(mu_);
};

class BulkCallTest : public testing::Test {
 protected:
  BulkCallTest() : link_(server_.address(), clock_) {
    server_.on_pull = [this](const v1::PullRequest&, FakeServer::PullIo& io) {
      for (int i = 0; i < kMessages; ++i) {
        permits_.acquire();
        v1::PullReply reply;
        reply.set_partition(i);
        io.Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  // A test that fails leaves the server waiting.
  void TearDown() override { permits_.release(kMessages); }

  BulkTarget Target() {
    return {.channel = MakeChannel(server_.address(), ChannelPurpose::kBulk),
            .link = &link_,
            .deadline = clock_.Now() + kPatience,
            .patience = kPatience};
  }

  // How many messages may be sent.
  std::counting_semaphore<> permits_{0};
  FakeServer server_;
  JumpingClock clock_;
  Link link_;
};

TEST_F(BulkCallTest, ACallThatGoesForwardOutlivesItsFirstDeadline) {
  BulkCall call(Target(), "/cohort.v1.Parameters/Pull", "the pull");
  ASSERT_TRUE(call.Send(EncodeFrame(v1::PullRequest(), ByteRope())).ok());
  call.FinishWrites();
  // Each message comes 9 of 10 hours after the one before, and not before
  // Receive has looked at the clock, to wait.
  for (int i = 0; i < kMessages; ++i) {
    clock_.Jump(absl::Hours(9));
    std::thread sender([this, asked = clock_.asked()] {
      clock_.AwaitAsked(asked);
      permits_.release();
    });
    const auto message = call.Receive();
    sender.join();
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_TRUE(message->has_value());
  }
  const auto end = OkValue(call.Receive());
  EXPECT_FALSE(end.has_value());
}

TEST_F(BulkCallTest, ACallThatStandsStillEndsAtItsDeadline) {
  BulkCall call(Target(), "/cohort.v1.Parameters/Pull", "the pull");
  ASSERT_TRUE(call.Send(EncodeFrame(v1::PullRequest(), ByteRope())).ok());
  call.FinishWrites();
  clock_.Jump(absl::Hours(11));
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Receive().status()));
}

}  // namespace
}  // namespace cohort
