#include "common/local/shared_float_files.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr int64_t kFileBytes = 4096;

TEST(SharedFloatFilesTest, FillsAFileBeforeItMakesAnother) {
  SharedFloatFiles files(kFileBytes);
  const auto first = files.Allocate(500);
  const auto second = files.Allocate(500);
  const auto third = files.Allocate(500);
  ASSERT_TRUE(first.has_value() && second.has_value() && third.has_value());
  EXPECT_EQ(first->place, (SharedPlace{.file = 0, .offset = 0}));
  // 2000 bytes, rounded up to cache lines.
  EXPECT_EQ(second->place, (SharedPlace{.file = 0, .offset = 2048}));
  EXPECT_EQ(third->place, (SharedPlace{.file = 1, .offset = 0}));
  EXPECT_EQ(files.FilesFrom(0).size(), 2u);
  EXPECT_EQ(files.FilesFrom(1).size(), 1u);
  EXPECT_TRUE(files.FilesFrom(5).empty());
}

TEST(SharedFloatFilesTest, ABufferLargerThanAFileGetsItsOwn) {
  SharedFloatFiles files(kFileBytes);
  const auto piece = OkValue(files.Allocate(5000));
  EXPECT_GE(files.FilesFrom(0).at(0)->size_bytes(), 20000);
}

TEST(SharedFloatFilesTest, WhatIsWrittenIsInTheFile) {
  SharedFloatFiles files(kFileBytes);
  (void)files.Allocate(3);
  const auto piece = OkValue(files.Allocate(2));
  piece.data[1] = 2.5f;
  float seen = 0;
  std::memcpy(&seen,
              files.FilesFrom(0).at(0)->bytes().data() + piece.place.offset + 4,
              sizeof(seen));
  EXPECT_EQ(seen, 2.5f);
}

TEST(SharedFloatFilesTest, APoolRecyclesSharedAndOwnBuffersApart) {
  FloatBufferPool pool(std::make_shared<SharedFloatFiles>(kFileBytes));
  const float* own = nullptr;
  const float* shared = nullptr;
  {
    const auto a = pool.Take(8);
    const auto b = pool.TakeShared(8);
    EXPECT_FALSE(a->place().has_value());
    EXPECT_TRUE(b->place().has_value());
    own = a->data();
    shared = b->data();
  }
  EXPECT_EQ(pool.TakeShared(8)->data(), shared);
  EXPECT_EQ(pool.Take(8)->data(), own);
}

TEST(SharedFloatFilesTest, APoolWithoutFilesLendsItsOwnMemory) {
  FloatBufferPool pool;
  EXPECT_FALSE(pool.TakeShared(8)->place().has_value());
}

TEST(SharedFloatFilesTest, ABufferOutlivesPoolAndFiles) {
  std::shared_ptr<FloatBuffer> buffer;
  {
    FloatBufferPool pool(std::make_shared<SharedFloatFiles>(kFileBytes));
    buffer = pool.TakeShared(8);
  }
  buffer->data()[7] = 1;
  EXPECT_EQ(buffer->span()[7], 1);
}

}  // namespace
}  // namespace cohort
