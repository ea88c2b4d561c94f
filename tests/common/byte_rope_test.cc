#include "common/byte_rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/fakes/float_ropes.h"

namespace cohort {
namespace {

using testing::ElementsAre;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

TEST(ByteRopeTest, IsTheConcatenationOfItsPieces) {
  const std::string head = "abc";
  const std::string tail = "defg";
  ByteRope rope(BytesOf(head), nullptr);
  rope.Append(BytesOf(tail), nullptr);
  EXPECT_EQ(rope.size_bytes(), 7);
  EXPECT_EQ(rope.ToString(), "abcdefg");
}

TEST(ByteRopeTest, IgnoresEmptyPieces) {
  ByteRope rope;
  rope.Append({}, nullptr);
  EXPECT_EQ(rope.size_bytes(), 0);
  EXPECT_TRUE(rope.pieces().empty());
  EXPECT_EQ(rope.ToString(), "");
}

TEST(ByteRopeTest, KeepsTheMemoryOfItsPiecesAlive) {
  auto owner = std::make_shared<std::string>("kept");
  const std::weak_ptr<std::string> watch = owner;
  ByteRope rope(BytesOf(*owner), owner);
  owner.reset();
  EXPECT_EQ(rope.ToString(), "kept");
  rope = ByteRope();
  EXPECT_TRUE(watch.expired());
}

TEST(ByteRopeTest, CopyDoesNotSeeLaterChanges) {
  std::string text = "before";
  const ByteRope rope = ByteRope::Copy(BytesOf(text));
  text = "behind";
  EXPECT_EQ(rope.ToString(), "before");
}

TEST(ByteRopeTest, ChecksumDoesNotDependOnCuts) {
  const std::vector<float> floats = {1, 2, 3, 4};
  const uint64_t whole = CutAt(floats, {}).Checksum();
  for (size_t cut = 1; cut < 16; ++cut) {
    EXPECT_EQ(CutAt(floats, {cut}).Checksum(), whole) << "cut at " << cut;
  }
  EXPECT_NE(CutAt({1, 2, 3, 5}, {}).Checksum(), whole);
}

// Reference values of XXH3-64 with seed 0, from the algorithm's own tests.
TEST(ByteRopeTest, SampledChecksumTellsComputationsApart) {
  // Longer than two strides, and no multiple of a sample.
  std::vector<float> floats(10007);
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i);
  const uint64_t whole = CutAt(floats, {}).SampledChecksum();
  for (const std::vector<size_t>& cuts :
       {std::vector<size_t>{1}, {1023, 1025}, {16383, 16384, 20000}, {40027}}) {
    EXPECT_EQ(CutAt(floats, cuts).SampledChecksum(), whole);
  }
  std::vector<float> longer = floats;
  longer.push_back(0);
  EXPECT_NE(CutAt(longer, {}).SampledChecksum(), whole);
  for (float& value : floats) value += 1;
  EXPECT_NE(CutAt(floats, {}).SampledChecksum(), whole);
  floats.assign(1, 0);
  const uint64_t one = CutAt(floats, {}).SampledChecksum();
  floats[0] = -0.0f;
  EXPECT_NE(CutAt(floats, {}).SampledChecksum(), one);
}

TEST(ChecksumTest, IsXxh3) {
  EXPECT_EQ(Xxh3({}), 0x2D06800538D394C2u);
  EXPECT_EQ(ByteRope().Checksum(), 0x2D06800538D394C2u);
  EXPECT_EQ(ChecksumText(Xxh3({})), "2d06800538d394c2");
  EXPECT_EQ(ChecksumText(0xab), "00000000000000ab");
}

TEST(ChecksumTest, StreamingEqualsTheWhole) {
  const std::string text(1000, 'x');
  StreamingXxh3 stream;
  stream.Update(BytesOf(text).subspan(0, 1));
  stream.Update(BytesOf(text).subspan(1, 500));
  stream.Update(BytesOf(text).subspan(501));
  EXPECT_EQ(stream.Digest(), Xxh3(BytesOf(text)));
}

TEST(RopeReaderTest, ReadsOverPieceBoundaries) {
  const ByteRope rope = CutAt({1, 2, 3}, {1, 6});
  RopeReader reader(rope);
  std::vector<float> floats(3);
  reader.Read(floats.data(), 8);
  EXPECT_EQ(reader.remaining_bytes(), 4);
  reader.Read(floats.data() + 2, 4);
  EXPECT_EQ(reader.remaining_bytes(), 0);
  EXPECT_THAT(floats, ElementsAre(1, 2, 3));
}

TEST(RopeReaderTest, SkipsOverPieceBoundaries) {
  const ByteRope rope = CutAt({1, 2, 3}, {1, 6});
  RopeReader reader(rope);
  reader.Skip(8);
  float last = 0;
  reader.Read(&last, 4);
  EXPECT_EQ(last, 3);
}

TEST(RopeReaderTest, PeeksWhereTheBytesLieIfOnePieceHoldsThem) {
  const ByteRope rope = CutAt({1, 2, 3}, {4});
  RopeReader reader(rope);
  reader.Skip(4);
  EXPECT_EQ(reader.contiguous_bytes(), 8);
  EXPECT_EQ(reader.Peek(8, nullptr), rope.pieces()[1].bytes.data());
  EXPECT_EQ(reader.remaining_bytes(), 8);
}

TEST(RopeReaderTest, PeeksACopyOfWhatIsCut) {
  const ByteRope rope = CutAt({1, 2}, {1, 2, 3, 5});
  RopeReader reader(rope);
  std::array<std::byte, 8> scratch;
  EXPECT_EQ(reader.contiguous_bytes(), 1);
  ASSERT_EQ(reader.Peek(8, scratch.data()), scratch.data());
  std::vector<float> floats(2);
  std::memcpy(floats.data(), scratch.data(), scratch.size());
  EXPECT_THAT(floats, ElementsAre(1, 2));
  EXPECT_EQ(reader.remaining_bytes(), 8);
}

TEST(RopeReaderTest, NothingIsContiguousAtTheEnd) {
  const ByteRope rope = CutAt({1}, {2});
  RopeReader reader(rope);
  reader.Skip(4);
  EXPECT_EQ(reader.contiguous_bytes(), 0);
  EXPECT_EQ(RopeReader(ByteRope()).contiguous_bytes(), 0);
}

TEST(RopeReaderDeathTest, RefusesToReadPastTheEnd) {
  const ByteRope rope = CutAt({1, 2}, {});
  RopeReader reader(rope);
  std::array<std::byte, 12> scratch;
  EXPECT_DEATH(reader.Skip(12), "got 8 bytes, want 12");
  EXPECT_DEATH(reader.Peek(12, scratch.data()), "got 8 bytes, want 12");
}

}  // namespace
}  // namespace cohort
