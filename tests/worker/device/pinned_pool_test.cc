#include "worker/device/pinned_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/fakes/fake_accelerator.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(PinnedPoolTest, BlockIsHandedOutAgain) {
  FakeAccelerator accelerator;
  PinnedPool pool(accelerator);
  void* first = nullptr;
  {
    const auto block = OkValue(pool.Take(1000));
    EXPECT_GE(block->bytes(), 1000);
    first = block->memory();
  }
  // 1000 and 1024 are rounded to the same size.
  const auto again = pool.Take(1024);
  EXPECT_EQ((*again)->memory(), first);
  const auto other = pool.Take(1024);
  EXPECT_NE((*other)->memory(), first);
  EXPECT_EQ(accelerator.allocations, 2);
}

TEST(PinnedPoolTest, BlockThatTheDeviceStillReadsIsNotHandedOut) {
  FakeAccelerator accelerator;
  PinnedPool pool(accelerator);
  std::vector<char> to(512);
  void* busy = nullptr;
  {
    const auto block = *pool.Take(512);
    busy = block->memory();
    ExpectOk(accelerator.Copy(Lane::kCopy, to.data(), block->memory(), 512));
    ASSERT_TRUE(pool.MarkUse(Lane::kCopy, *block).ok());
  }
  EXPECT_NE((*pool.Take(512))->memory(), busy);
  accelerator.asking_helps = true;
  std::vector<std::shared_ptr<PinnedBlock>> held;
  held.push_back(*pool.Take(512));
  held.push_back(*pool.Take(512));
  EXPECT_TRUE(held[0]->memory() == busy || held[1]->memory() == busy);
  EXPECT_EQ(accelerator.allocations, 2);
}

TEST(PinnedPoolTest, BlockMayOutliveThePoolAndEndOnAnotherThread) {
  FakeAccelerator accelerator;
  auto pool = std::make_unique<PinnedPool>(accelerator);
  std::shared_ptr<PinnedBlock> block = *pool->Take(1);
  pool.reset();
  block->as<char>()[0] = 'x';
  std::thread([&block] { block.reset(); }).join();
}

TEST(PinnedPoolTest, WithoutMemoryTheErrorSaysHowMuchWasWanted) {
  FakeAccelerator accelerator;
  accelerator.pinned_bytes_max = 1024;
  PinnedPool pool(accelerator);
  EXPECT_THAT(pool.Take(5000),
              IsError(kResourceExhausted, "5120 bytes of page-locked memory"));
}

}  // namespace
}  // namespace cohort
