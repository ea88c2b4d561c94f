#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/permutation.h"
#include "tests/fakes/statuses.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/raster.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()),
                             text.size());
}

// JPEG is not exact: the rounding of the colour space and of the transform is
// one each.
void ExpectNear(const std::vector<uint8_t>& got,
                const std::vector<uint8_t>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2) << "element " << i;
  }
}

std::vector<uint8_t> Planes(int64_t pixels, const std::vector<uint8_t>& pixel) {
  std::vector<uint8_t> planes;
  for (const uint8_t value : pixel) {
    planes.insert(planes.end(), static_cast<size_t>(pixels), value);
  }
  return planes;
}

// Left half one colour and right half another, so that the boundary is one of
// blocks, not only of pixels.
Picture TwoHalves() {
  Picture picture{.height = 8, .width = 16};
  for (int64_t i = 0; i < 8 * 16; ++i) {
    const bool left = i % 16 < 8;
    for (const int value : {left ? 200 : 20, left ? 100 : 120, 40}) {
      picture.pixels.push_back(static_cast<uint8_t>(value));
    }
  }
  return picture;
}

TEST(DecodeJpegTest, GivesPlanesOfColour) {
  for (const JpegKind kind : {JpegKind::kBaseline, JpegKind::kProgressive}) {
    const auto raster =
        OkValue(DecodeJpeg(Bytes(JpegBytes(TwoHalves(), kind))));
    EXPECT_EQ(raster.channels, 3);
    EXPECT_EQ(raster.size, (ImageSize{.height = 8, .width = 16}));
    std::vector<uint8_t> want;
    for (const auto& [left, right] :
         {std::pair{200, 20}, {100, 120}, {40, 40}}) {
      for (int i = 0; i < 8 * 16; ++i) {
        want.push_back(static_cast<uint8_t>(i % 16 < 8 ? left : right));
      }
    }
    ExpectNear(raster.pixels, want);
  }
}

TEST(DecodeJpegTest, GreyBecomesThreeEqualChannels) {
  const auto raster = OkValue(DecodeJpeg(Bytes(JpegBytes(Plain(3, 5, {77})))));
  EXPECT_EQ(raster.size, (ImageSize{.height = 3, .width = 5}));
  ExpectNear(raster.pixels, Planes(15, {77, 77, 77}));
}

TEST(DecodeJpegTest, PrintersColoursAreRefused) {
  EXPECT_THAT(
      DecodeJpeg(Bytes(JpegBytes(Plain(4, 4, {1, 2, 3, 4}), JpegKind::kCmyk))),
      IsError(kInvalidArgument, "JPEG image of 4 components"));
}

// Noise fills the file with entropy-coded data, the part that libjpeg only
// warns about when it ends early.
Picture Noise(int64_t side) {
  Picture picture{.height = side, .width = side};
  SplitMix64 random(7);
  for (int64_t i = 0; i < 3 * side * side; ++i) {
    picture.pixels.push_back(static_cast<uint8_t>(random.Below(256)));
  }
  return picture;
}

TEST(DecodeJpegTest, EveryTruncationIsDataLoss) {
  const std::string whole = JpegBytes(Noise(16));
  ASSERT_TRUE(DecodeJpeg(Bytes(whole)).ok());
  for (size_t kept = 0; kept < whole.size(); ++kept) {
    const auto raster = DecodeJpeg(Bytes(whole.substr(0, kept)));
    EXPECT_EQ(raster.status().code(), kDataLoss)
        << kept << " of " << whole.size() << ": " << raster.status();
  }
}

TEST(DecodePngTest, EveryTruncationIsDataLoss) {
  const std::string whole = PngBytes(Noise(6), PngKind::kRgb);
  ASSERT_TRUE(DecodePng(Bytes(whole)).ok());
  for (size_t kept = 0; kept < whole.size(); ++kept) {
    const auto raster = DecodePng(Bytes(whole.substr(0, kept)));
    EXPECT_EQ(raster.status().code(), kDataLoss)
        << kept << " of " << whole.size() << ": " << raster.status();
  }
}

// PNG's checksums cover everything behind the signature.
TEST(DecodePngTest, EveryChangedByteIsAnError) {
  const std::string whole = PngBytes(Noise(6), PngKind::kRgb);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x20);
    EXPECT_FALSE(DecodePng(Bytes(changed)).ok()) << "byte " << at;
  }
}

// JPEG has no checksums: a changed byte may give another image, but nothing
// worse. The sanitizers check this.
TEST(DecodeJpegTest, AnyChangedByteIsAnImageOrAnError) {
  const std::string whole = JpegBytes(Noise(16));
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const auto raster = DecodeJpeg(Bytes(changed));
      refused += raster.ok() ? 0 : 1;
      if (!raster.ok()) continue;
      EXPECT_EQ(static_cast<int64_t>(raster->pixels.size()),
                3 * raster->size.height * raster->size.width);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(DecodeJpegTest, AHeaderThatClaimsTooMuchIsRefusedBeforeMemoryIsTaken) {
  std::string bytes = JpegBytes(Plain(8, 8, {1, 2, 3}));
  // The frame header: marker, length, precision, height, width.
  const size_t frame = bytes.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  bytes.replace(frame + 5, 4, "\xff\x00\xff\x00", 4);
  EXPECT_THAT(DecodeJpeg(Bytes(bytes)),
              IsError(kInvalidArgument, "65280x65280"));
}

TEST(DecodePngTest, EveryKindBecomesColour) {
  struct Case {
    PngKind kind = PngKind::kGrey;
    int bits = 8;
    std::vector<uint8_t> pixel;
    std::vector<uint8_t> want;
  };
  const std::vector<Case> cases = {
      {PngKind::kRgb, 8, {10, 20, 30}, {10, 20, 30}},
      {PngKind::kRgb, 16, {10, 20, 30}, {10, 20, 30}},
      {PngKind::kRgba, 8, {10, 20, 30, 128}, {10, 20, 30}},
      {PngKind::kGrey, 8, {200}, {200, 200, 200}},
      {PngKind::kGrey, 16, {200}, {200, 200, 200}},
      // Two bits: 0, 1, 2, 3 are 0, 85, 170, 255.
      {PngKind::kGrey, 2, {2}, {170, 170, 170}},
      {PngKind::kGreyAlpha, 8, {9, 1}, {9, 9, 9}},
      {PngKind::kPalette, 4, {5}, {5, 10, 15}},
  };
  for (const Case& c : cases) {
    const auto raster = OkValue(
        DecodePng(Bytes(PngBytes(Plain(2, 3, c.pixel), c.kind, c.bits))));
    EXPECT_EQ(raster.channels, 3);
    EXPECT_EQ(raster.size, (ImageSize{.height = 2, .width = 3}));
    EXPECT_THAT(raster.pixels, ElementsAreArray(Planes(6, c.want)))
        << static_cast<int>(c.kind) << ", " << c.bits << " bits";
  }
}

TEST(DecodeMaskTest, PositionsAndGreysAreClassNumbersAsTheyAre) {
  for (const PngKind kind : {PngKind::kPalette, PngKind::kGrey}) {
    for (const int bits : {2, 4, 8}) {
      const auto mask =
          OkValue(DecodeMask(Bytes(PngBytes({.height = 2,
                                             .width = 3,
                                             .channels = 1,
                                             .pixels = {0, 1, 2, 3, 2, 0}},
                                            kind, bits))));
      EXPECT_EQ(mask.channels, 1);
      EXPECT_EQ(mask.size, (ImageSize{.height = 2, .width = 3}));
      EXPECT_THAT(mask.pixels, ElementsAre(0, 1, 2, 3, 2, 0));
    }
  }
}

TEST(DecodeMaskTest, ColoursAreNoClassNumbers) {
  EXPECT_THAT(
      DecodeMask(Bytes(PngBytes(Plain(2, 2, {1, 2, 3}), PngKind::kRgb))),
      IsError(kInvalidArgument, "a mask in RGB of 8 bits"));
  EXPECT_THAT(DecodeMask(Bytes(PngBytes(Plain(2, 2, {1}), PngKind::kGrey, 16))),
              IsError(kInvalidArgument, "a mask in grey of 16 bits"));
}

TEST(DecodeImageTest, GoesByTheContent) {
  EXPECT_TRUE(DecodeImage(Bytes(JpegBytes(Plain(2, 2, {1, 2, 3})))).ok());
  ExpectOk(DecodeImage(Bytes(PngBytes(Plain(2, 2, {1, 2, 3}), PngKind::kRgb))));
  EXPECT_THAT(DecodeImage(Bytes("GIF89a")), IsError(kDataLoss, "got 6 bytes"));
}

}  // namespace
}  // namespace cohort
