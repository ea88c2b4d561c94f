#include "common/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/float_ropes.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Joined(const std::vector<ByteRope>& parts) {
  std::string bytes;
  for (const ByteRope& part : parts) bytes += part.ToString();
  return bytes;
}

// A file with this header and `data_bytes` zeros behind it.
std::string FileWith(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  return prefix + header + std::string(data_bytes, '\0');
}

absl::StatusOr<SafetensorsContent> Decode(const std::string& file) {
  return DecodeSafetensors("m.safetensors", ByteRope::CopyText(file));
}

TEST(SafetensorsTest, WritesTheFormatByteForByte) {
  const auto parts = OkValue(EncodeSafetensors(
      {.tensors = {{.name = "w", .shape = {2}, .bytes = RopeOver({1, 2})}}}));
  // 54 characters of JSON, filled up to 56; 1.0f and 2.0f in little-endian.
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_EQ(header.size(), 54u);
  EXPECT_EQ(Joined(parts), std::string("\x38\0\0\0\0\0\0\0", 8) + header +
                               "  " + std::string("\0\0\x80\x3f\0\0\0\x40", 8));
}

TEST(SafetensorsTest, ReadsBackWhatItWrote) {
  const SafetensorsContent content = {
      .tensors = {{.name = "layer.weight",
                   .shape = {2, 1},
                   .bytes = RopeOver({1, -2})},
                  {.name = "empty", .shape = {0, 3}},
                  {.name = "mean",
                   .type = TensorType::kFloat64,
                   .shape = {2},
                   .bytes = RopeOver(std::vector<double>{0.5, 1e300})},
                  {.name = "count",
                   .type = TensorType::kInt64,
                   .bytes = RopeOver(std::vector<int64_t>{-7})}},
      .metadata = {{"format", "pt"}, {"note", "\"quoted\" \xc3\xa9"}}};
  const auto parts = OkValue(EncodeSafetensors(content));
  const auto read = OkValue(Decode(Joined(parts)));
  EXPECT_EQ(read.metadata, content.metadata);
  ASSERT_EQ(read.tensors.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read.tensors[i].name, content.tensors[i].name);
    EXPECT_EQ(read.tensors[i].type, content.tensors[i].type);
    EXPECT_EQ(read.tensors[i].shape, content.tensors[i].shape);
    EXPECT_EQ(read.tensors[i].bytes.ToString(),
              content.tensors[i].bytes.ToString());
  }
}

TEST(SafetensorsTest, TensorsOfTheDecodedFileAreNotCopied) {
  const std::string file =
      FileWith(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  const ByteRope rope = ByteRope::CopyText(file);
  const auto read = OkValue(DecodeSafetensors("m.safetensors", rope));
  EXPECT_EQ(read.tensors[0].bytes.pieces()[0].bytes.data(),
            rope.pieces()[0].bytes.data() + file.size() - 4);
}

// Headers list tensors in any order; a tensor without elements begins where
// its neighbour does.
TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto read = OkValue(Decode(
      FileWith(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
               R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
               R"("none":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
               8)));
  std::vector<std::string> names;
  for (const NamedTensor& t : read.tensors) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("a", "none", "b"));
}

TEST(SafetensorsTest, RefusesToWriteWhatCouldNotBeRead) {
  const NamedTensor good = {.name = "w", .shape = {1}, .bytes = RopeOver({1})};
  NamedTensor changed = good;
  const auto message = [&](const std::vector<NamedTensor>& tensors) {
    const auto parts = EncodeSafetensors({.tensors = tensors});
    EXPECT_EQ(parts.status().code(), kInvalidArgument);
    return std::string(parts.status().message());
  };
  EXPECT_EQ(message({good, good}), "tensor w appears twice");
  changed.shape = {2};
  EXPECT_EQ(message({changed}), "tensor w: got 4 bytes, want 8");
  changed.shape = {int64_t{1} << 62, 4};
  EXPECT_THAT(message({changed}), HasSubstr("tensor w: got 4 bytes"));
  changed = good;
  changed.name = "__metadata__";
  EXPECT_THAT(message({changed}), HasSubstr("reserved"));
  changed.name = "\xff";
  EXPECT_THAT(message({changed}), HasSubstr("UTF-8"));
}

struct DamageCase {
  const char* situation;
  std::string file;
  // Part of the message.
  std::string why;
};

std::string OneTensor(const std::string& type, const std::string& shape,
                      const std::string& offsets, size_t data_bytes) {
  return FileWith(absl::StrCat(R"({"w":{"dtype":")", type, R"(","shape":)",
                               shape, R"(,"data_offsets":)", offsets, "}}"),
                  data_bytes);
}

std::vector<DamageCase> HeaderDamage() {
  std::string header_longer_than_file = FileWith("{}", 0);
  header_longer_than_file[0] = 100;
  std::string header_over_the_limit = FileWith("{}", 0);
  header_over_the_limit[4] = 1;
  std::string length_without_end = FileWith("{}", 0);
  for (size_t i = 0; i < 8; ++i) length_without_end[i] = '\xff';
  return {
      {"empty file", "", "got only 0 bytes"},
      {"no room for the length", "1234567", "got only 7 bytes"},
      {"header longer than the file", header_longer_than_file,
       "got a header of 100 bytes in a file of 10"},
      {"header above 100 MB", header_over_the_limit,
       "got a header of 4294967298 bytes"},
      {"length of all ones", length_without_end,
       "got a header of 18446744073709551615 bytes"},
      {"no JSON", FileWith("{", 0), "not a JSON object"},
      {"an array", FileWith("[]", 0), "not a JSON object"},
      {"tensor is a number", FileWith(R"({"w":1})", 0), "tensor w: want dtype"},
      {"metadata is a text", FileWith(R"({"__metadata__":""})", 0),
       "metadata is not a JSON object"},
      {"metadata holds a number", FileWith(R"({"__metadata__":{"k":1}})", 0),
       "metadata k is not a string"},
      {"bytes without tensor", FileWith("{}", 3),
       "3 bytes belong to no tensor"},
  };
}

std::vector<DamageCase> TensorDamage() {
  return {
      {"unknown type", OneTensor("BF16", "[2]", "[0,4]", 4),
       "tensor w: got type BF16, want F32, F64 or I64"},
      {"negative extent", OneTensor("F32", "[-1]", "[0,4]", 4),
       "tensor w: got bytes 0 to 4 for shape [-1]"},
      {"fractional extent", OneTensor("F32", "[1.5]", "[0,4]", 4),
       "an extent is not an integer"},
      // 2^32 * 2^32 * 4 bytes is 0 in 64 bits.
      {"shape that overflows",
       OneTensor("F32", "[4294967296,4294967296]", "[0,0]", 0),
       "for shape [4294967296,4294967296]"},
      {"fewer bytes than the shape", OneTensor("F32", "[2]", "[0,4]", 4),
       "got bytes 0 to 4 for shape [2]"},
      {"end before begin, by more than an integer holds",
       OneTensor("F32", "[1]", "[9223372036854775807,-9223372036854775808]", 4),
       "tensor w: got bytes"},
      {"three offsets", OneTensor("F32", "[1]", "[0,4,4]", 4),
       "want dtype, shape and data_offsets"},
      {"end behind the file", OneTensor("F32", "[2]", "[0,8]", 7),
       "tensor w: got 7 bytes of tensors, want at least 8"},
      {"offsets near the largest integer",
       OneTensor("F32", "[1]", "[9223372036854775800,9223372036854775804]", 4),
       "want at least 9223372036854775804"},
      {"gap", OneTensor("F32", "[1]", "[4,8]", 8),
       "tensor w: begins at byte 4, want 0"},
      {"overlap",
       FileWith(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8),
       "tensor b: begins at byte 4, want 8"},
      {"bytes behind the last tensor", OneTensor("F32", "[1]", "[0,4]", 5),
       "1 bytes belong to no tensor"},
  };
}

void ExpectDamage(const std::vector<DamageCase>& cases) {
  for (const DamageCase& c : cases) {
    SCOPED_TRACE(c.situation);
    const auto read = Decode(c.file);
    EXPECT_THAT(read, IsError(kDataLoss, c.why));
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr("m.safetensors"));
  }
}

TEST(SafetensorsTest, NamesWhatIsWrongWithADamagedHeader) {
  ExpectDamage(HeaderDamage());
}

TEST(SafetensorsTest, AHeaderThatNestsDeepIsDamage) {
  EXPECT_THAT(Decode(FileWith(std::string(1'000'000, '['), 0)),
              IsError(kDataLoss, "deeper than 32 levels"));
}

TEST(SafetensorsTest, NamesTheTensorThatIsWrong) {
  ExpectDamage(TensorDamage());
}

TEST(SafetensorsTest, AnyTruncationIsNoticed) {
  const auto parts = OkValue(EncodeSafetensors(
      {.tensors = {
           {.name = "a", .shape = {2}, .bytes = ByteRope::CopyText("12345678")},
           {.name = "b", .shape = {1}, .bytes = ByteRope::CopyText("1234")}}}));
  const std::string whole = Joined(parts);
  ASSERT_TRUE(Decode(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Decode(whole.substr(0, size)).ok()) << size << " bytes";
  }
}

}  // namespace
}  // namespace cohort
