#include "common/formats/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::EndsWith;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);

template <typename T>
T Raw(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Data of a file's records, provided that all checksums are correct.
std::vector<std::string> Records(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = static_cast<size_t>(Raw<uint64_t>(bytes, at));
    EXPECT_EQ(Raw<uint32_t>(bytes, at + 8), MaskedCrc32c(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(Raw<uint32_t>(bytes, at + 12 + length),
              MaskedCrc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

// 0xe3069283 is CRC-32C's check value in catalogues of checksums.
TEST(TensorBoardTest, ChecksumIsTheMaskedCastagnoliSum) {
  const uint32_t crc = 0xe3069283;
  EXPECT_EQ(MaskedCrc32c("123456789"),
            ((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

// The bytes are written out by hand.
TEST(TensorBoardTest, EventsAreProtobufMessages) {
  const TempDir folder;
  auto file = OkValue(EventFile::Create(folder.path(), kNow, 0));
  ExpectOk(
      file->Add(300, absl::FromUnixSeconds(1700000001), {{"loss/train", 0.5}}));
  const std::vector<std::string> records = Records(ReadText(file->path()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_THAT(records[0], EndsWith("\x1a\x0d"
                                   "brain.Event:2"));
  // wall_time, step 300 as a varint, the summary with its one value.
  EXPECT_EQ(records[2].substr(0, 1), "\x09");
  EXPECT_EQ(Raw<double>(records[2], 1), 1700000001);
  EXPECT_EQ(records[2].substr(9), std::string("\x10\xac\x02"
                                              "\x2a\x13"
                                              "\x0a\x11"
                                              "\x0a\x0aloss/train"
                                              "\x15\x00\x00\x00\x3f",
                                              24));
}

TEST(TensorBoardTest, ContinuedRunTellsWhereItStartsAnew) {
  const TempDir folder;
  const std::string path = folder.File("events");
  auto first = OkValue(EventFile::Create(path, kNow, 0));
  // The clock was set back.
  auto second = OkValue(EventFile::Create(path, kNow - absl::Hours(1), 5));
  EXPECT_LT(first->path(), second->path());
  const std::vector<std::string> records = Records(ReadText(second->path()));
  ASSERT_EQ(records.size(), 2u);
  // Step 5, session_log { status: START }.
  EXPECT_THAT(records[1], EndsWith("\x10\x05\x3a\x02\x08\x01"));
}

TEST(TensorBoardTest, WhatIsNoDirectoryIsNamed) {
  const TempDir folder;
  const std::string path = folder.File("file");
  WriteText(path, "text");
  for (const std::string& wrong : {path, absl::StrCat(path, "/below")}) {
    EXPECT_THAT(EventFile::Create(wrong, kNow, 0),
                IsError(kFailedPrecondition, wrong));
  }
}

}  // namespace
}  // namespace cohort
