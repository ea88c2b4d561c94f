#include "common/float_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace cohort {
namespace {

TEST(FloatBufferTest, IsAlignedForVectorInstructions) {
  for (int64_t elements : {1, 3, 17, 1000}) {
    const FloatBuffer buffer(elements);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.span().size(), static_cast<size_t>(elements));
  }
}

TEST(FloatBufferTest, ARopeKeepsItAlive) {
  auto buffer = std::make_shared<FloatBuffer>(2);
  buffer->mutable_span()[0] = 1;
  buffer->mutable_span()[1] = 2;
  const std::weak_ptr<FloatBuffer> watch = buffer;
  ByteRope rope = RopeOf(buffer);
  buffer.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(rope.size_bytes(), 8);
  rope = ByteRope();
  EXPECT_TRUE(watch.expired());
}

TEST(FloatBufferTest, HasTheChecksumOfItsBytes) {
  auto buffer = std::make_shared<FloatBuffer>(2);
  buffer->mutable_span()[0] = 1;
  buffer->mutable_span()[1] = 2;
  EXPECT_EQ(buffer->Checksum(), RopeOf(buffer).Checksum());
  EXPECT_EQ(buffer->Checksum(), RopeOf(buffer).Checksum());
}

// The memory, and what is known of it, are used again.
TEST(FloatBufferPoolTest, AChecksumIsOfTheNewContents) {
  FloatBufferPool pool;
  auto buffer = pool.Take(1);
  buffer->mutable_span()[0] = 1;
  const uint64_t before = buffer->Checksum();
  buffer.reset();
  buffer = pool.Take(1);
  buffer->mutable_span()[0] = 2;
  EXPECT_NE(buffer->Checksum(), before);
  EXPECT_EQ(buffer->Checksum(), RopeOf(buffer).Checksum());
}

TEST(FloatBufferPoolTest, HandsAReturnedBufferOutAgain) {
  FloatBufferPool pool;
  auto buffer = pool.Take(8);
  const float* memory = buffer->data();
  buffer.reset();
  EXPECT_EQ(pool.Take(8)->data(), memory);
}

TEST(FloatBufferPoolTest, DoesNotHandOutWhatIsInUse) {
  FloatBufferPool pool;
  const auto first = pool.Take(8);
  const auto second = pool.Take(8);
  EXPECT_NE(first->data(), second->data());
}

TEST(FloatBufferPoolTest, GivesTheSizeAskedFor) {
  FloatBufferPool pool;
  pool.Take(8).reset();
  EXPECT_EQ(pool.Take(4)->size(), 4);
  EXPECT_EQ(pool.Take(8)->size(), 8);
}

TEST(FloatBufferPoolTest, ABufferMayOutliveThePool) {
  std::optional<FloatBufferPool> pool(std::in_place);
  const std::shared_ptr<FloatBuffer> buffer = pool->Take(2);
  pool.reset();
  buffer->mutable_span()[1] = 5;
  EXPECT_EQ(buffer->span()[1], 5);
}

}  // namespace
}  // namespace cohort
