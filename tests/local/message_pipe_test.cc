#include "common/local/message_pipe.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"

namespace cohort {
namespace {

constexpr int64_t kCapacity = 64;
// The counts lie at the beginning of a memory, each in a cache line.
constexpr size_t kReceivedAt = 64;
constexpr size_t kDataAt = 128;

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

class MessagePipeTest : public ::testing::Test {
 protected:
  struct alignas(64) Memory {
    std::array<std::byte, 128 + kCapacity> bytes = {};
  };

  void Set(Memory& memory, size_t at, uint32_t value) {
    std::memcpy(memory.bytes.data() + at, &value, sizeof(value));
  }

  std::string Received(MessagePipe& pipe) {
    auto message = pipe.Receive();
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok() || !message->has_value()) return "nothing";
    return **std::move(message);
  }

  Memory left_memory_;
  Memory right_memory_;
  MessagePipe left_{absl::MakeSpan(left_memory_.bytes),
                    absl::MakeConstSpan(right_memory_.bytes)};
  MessagePipe right_{absl::MakeSpan(right_memory_.bytes),
                     absl::MakeConstSpan(left_memory_.bytes)};
};

TEST_F(MessagePipeTest, TheTestsKnowTheLayout) {
  EXPECT_EQ(MessagePipe::SizeBytes(kCapacity),
            static_cast<int64_t>(left_memory_.bytes.size()));
  ASSERT_TRUE(left_.Send(BytesOf("ab")).ok());
  EXPECT_EQ(left_memory_.bytes[0], std::byte{6});
  EXPECT_EQ(left_memory_.bytes[kDataAt], std::byte{2});
  EXPECT_EQ(Received(right_), "ab");
  EXPECT_EQ(right_memory_.bytes[kReceivedAt], std::byte{6});
}

TEST_F(MessagePipeTest, MessagesArriveInOrderOnBothWays) {
  EXPECT_EQ(Received(left_), "nothing");
  ASSERT_TRUE(left_.Send(BytesOf("first")).ok());
  ASSERT_TRUE(left_.Send(BytesOf("")).ok());
  ASSERT_TRUE(right_.Send(BytesOf("back")).ok());
  EXPECT_EQ(Received(right_), "first");
  EXPECT_EQ(Received(right_), "");
  EXPECT_EQ(Received(right_), "nothing");
  EXPECT_EQ(Received(left_), "back");
}

TEST_F(MessagePipeTest, MessagesOfAllSizesPassTheEndOfTheMemory) {
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const std::string message(random() % (kCapacity - 3), static_cast<char>(i));
    ASSERT_TRUE(left_.Send(BytesOf(message)).ok());
    ASSERT_EQ(Received(right_), message);
  }
}

TEST_F(MessagePipeTest, AFullPipeTakesAMessageOnceThereIsRoom) {
  const std::string half(28, 'x');
  ASSERT_TRUE(left_.Send(BytesOf(half)).ok());
  ASSERT_TRUE(left_.Send(BytesOf(half)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(left_.Send(BytesOf(""))));
  EXPECT_EQ(Received(right_), half);
  EXPECT_TRUE(left_.Send(BytesOf(half)).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(right_.Send(BytesOf(std::string(61, 'x')))));
}

TEST_F(MessagePipeTest, DamageIsNamed) {
  // More than fits.
  Set(left_memory_, 0, kCapacity + 1);
  EXPECT_TRUE(absl::IsDataLoss(right_.Receive().status()));
  // Not even a length.
  Set(left_memory_, 0, 3);
  EXPECT_TRUE(absl::IsDataLoss(right_.Receive().status()));
  // A length beyond what was sent.
  Set(left_memory_, 0, 20);
  Set(left_memory_, kDataAt, 17);
  EXPECT_TRUE(absl::IsDataLoss(right_.Receive().status()));
  Set(left_memory_, kDataAt, 0xffffffff);
  EXPECT_TRUE(absl::IsDataLoss(right_.Receive().status()));
  // More received than sent.
  Set(left_memory_, kReceivedAt, 1);
  EXPECT_TRUE(absl::IsDataLoss(right_.Send(BytesOf("x"))));
}

TEST_F(MessagePipeTest, AnyContentsGiveAnErrorAtWorst) {
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    for (std::byte& byte : left_memory_.bytes) {
      byte = static_cast<std::byte>(random() % (i % 2 == 0 ? 256 : 4));
    }
    const auto message = right_.Receive();
    if (message.ok() && message->has_value()) {
      EXPECT_LE((*message)->size(), static_cast<size_t>(kCapacity));
    }
    (void)right_.Send(BytesOf("x"));
  }
}

// The thread sanitizer checks the order of memory accesses here: both ends use
// the same addresses, which two processes would not.
TEST_F(MessagePipeTest, TwoThreadsWakeEachOther) {
  constexpr int kRounds = 20'000;
  std::thread echo([this] {
    for (int i = 0; i < kRounds; ++i) {
      std::string message = Received(right_);
      while (message == "nothing") {
        right_.Wait(absl::Seconds(30));
        message = Received(right_);
      }
      EXPECT_TRUE(right_.Send(BytesOf(message)).ok());
      right_.WakeOther();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const std::string message(static_cast<size_t>(i % 50), 'x');
    ASSERT_TRUE(left_.Send(BytesOf(message)).ok());
    left_.WakeOther();
    std::string answer = Received(left_);
    while (answer == "nothing") {
      left_.Wait(absl::Seconds(30));
      answer = Received(left_);
    }
    ASSERT_EQ(answer, message);
  }
  echo.join();
}

}  // namespace
}  // namespace cohort
