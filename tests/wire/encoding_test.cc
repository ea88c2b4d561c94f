#include "common/wire/encoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/bfloat16.h"
#include "tests/fakes/float_ropes.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Floats = std::vector<float>;

Floats Expanded(const ByteRope& rope) {
  std::vector<std::byte> bytes(static_cast<size_t>(rope.size_bytes()));
  rope.CopyTo(absl::MakeSpan(bytes));
  Floats values(bytes.size() / 2);
  ExpandBFloat16(bytes.data(), static_cast<int64_t>(values.size()),
                 values.data());
  return values;
}

TEST(EncodingTest, Float32IsTheSameBytes) {
  const ByteRope floats = CutRope({1, 2, 3}, 5);
  const ByteRope sent = EncodeGradient(floats, ElementType::kFloat32);
  ASSERT_EQ(sent.pieces().size(), floats.pieces().size());
  EXPECT_EQ(sent.pieces()[0].bytes.data(), floats.pieces()[0].bytes.data());
}

TEST(EncodingTest, BFloat16IsRoundedWhereverItIsCut) {
  Floats values;
  Floats rounded;
  for (int i = 0; i < 50; ++i) {
    values.push_back(1.0F / static_cast<float>(i + 1));
    rounded.push_back(BFloat16Value(BFloat16Bits(values.back())));
  }
  for (const size_t longest : {1, 3, 7, 64, 1000}) {
    EXPECT_EQ(Expanded(EncodeGradient(CutRope(values, longest),
                                      ElementType::kBFloat16)),
              rounded)
        << longest;
  }
  EXPECT_EQ(EncodeGradient(ByteRope(), ElementType::kBFloat16).size_bytes(), 0);
}

TEST(EncodingTest, WhatIsNotFiniteStaysSo) {
  const Floats sent =
      Expanded(EncodeGradient(CutRope({std::numeric_limits<float>::quiet_NaN(),
                                       std::numeric_limits<float>::max()},
                                      8),
                              ElementType::kBFloat16));
  EXPECT_TRUE(std::isnan(sent[0]));
  EXPECT_EQ(sent[1], std::numeric_limits<float>::infinity());
}

TEST(EncodingTest, AChangeIsAddedWhereverBothAreCut) {
  Floats base;
  Floats change;
  Floats wanted;
  for (int i = 0; i < 50; ++i) {
    base.push_back(1.0F / static_cast<float>(i + 1));
    change.push_back(static_cast<float>(i) * 0x1p-9F);
    wanted.push_back(base.back() + change.back());
  }
  const std::string halves =
      EncodeGradient(CutRope(change, 1000), ElementType::kBFloat16).ToString();
  FloatBufferPool pool;
  for (const size_t longest : {1, 3, 7, 1000}) {
    // The change in pieces of another length.
    ByteRope cut;
    for (size_t at = 0; at < halves.size(); at += longest + 2) {
      const ByteRope piece = ByteRope::CopyText(halves.substr(at, longest + 2));
      cut.Append(piece.pieces()[0].bytes, piece.pieces()[0].owner);
    }
    const auto sums = OkValue(AddChange(CutRope(base, longest), cut, pool));
    EXPECT_EQ(Floats(sums->span().begin(), sums->span().end()), wanted);
  }
  EXPECT_THAT(AddChange(CutRope(base, 1000), ByteRope::CopyText("abc"), pool),
              IsError(kInvalidArgument, ""));
}

TEST(EncodingTest, GradientsComeInTwoEncodings) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kBFloat16}) {
    const auto back = OkValue(ElementTypeOf(EncodingOf(type)));
    EXPECT_EQ(back, type);
  }
  EXPECT_EQ(EncodingOf(ElementType::kBFloat16), v1::ENCODING_BFLOAT16);
  for (const v1::Encoding other :
       {v1::ENCODING_UNSPECIFIED, v1::ENCODING_FLOAT64}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ElementTypeOf(other).status()));
  }
}

}  // namespace
}  // namespace cohort
