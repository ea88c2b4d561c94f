#include "common/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cohort {
namespace {

constexpr std::byte kUntouched{0xee};

std::vector<std::byte> Bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  // 251 is prime, so no period of the copy hides a shift.
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(i % 251);
  return bytes;
}

// Sizes around a line, and around the size from which lines are streamed.
TEST(StreamCopyTest, CopiesAnySizeBetweenAnyAddresses) {
  constexpr size_t kMargin = 64;
  for (size_t size : {0, 1, 63, 64, 65, (256 << 10) - 1, 256 << 10,
                      (256 << 10) + 1, (1 << 20) + 77}) {
    for (size_t from_offset : {0, 1, 16, 63}) {
      for (size_t to_offset : {0, 1, 4, 63}) {
        const std::vector<std::byte> from = Bytes(from_offset + size);
        std::vector<std::byte> to(size + 2 * kMargin, kUntouched);
        StreamCopy(absl::MakeConstSpan(from).subspan(from_offset),
                   absl::MakeSpan(to).subspan(to_offset, size));
        const auto begin = to.begin() + static_cast<ptrdiff_t>(to_offset);
        const auto end = begin + static_cast<ptrdiff_t>(size);
        EXPECT_TRUE(std::equal(
            begin, end, from.begin() + static_cast<ptrdiff_t>(from_offset)))
            << size << " bytes from " << from_offset << " to " << to_offset;
        EXPECT_EQ(
            static_cast<size_t>(std::count(to.begin(), begin, kUntouched) +
                                std::count(end, to.end(), kUntouched)),
            2 * kMargin);
      }
    }
  }
}

TEST(StreamCopyDeathTest, SizesMustAgree) {
  const std::vector<std::byte> from = Bytes(4);
  std::vector<std::byte> to(3);
  EXPECT_DEATH(StreamCopy(from, absl::MakeSpan(to)), "got 4 bytes for 3");
}

}  // namespace
}  // namespace cohort
