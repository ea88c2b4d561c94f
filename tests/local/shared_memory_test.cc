#include "common/local/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

FileDescriptor Duplicate(const SharedMemory& memory) {
  return FileDescriptor(fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
}

TEST(SharedMemoryTest, WhatOneWritesTheOtherReads) {
  auto own = OkValue(
      SharedMemory::Create("test", 4096, SharedMemory::Writer::kCreator));
  auto other =
      OkValue(SharedMemory::Map(Duplicate(own), 4096, /*writable=*/false));
  EXPECT_EQ(other.bytes()[7], std::byte{0});
  own.writable_bytes()[7] = std::byte{9};
  EXPECT_EQ(other.bytes()[7], std::byte{9});
}

TEST(SharedMemoryTest, OnlyTheCreatorCanWriteIfItWantsSo) {
  auto own = OkValue(
      SharedMemory::Create("test", 4096, SharedMemory::Writer::kCreator));
  EXPECT_FALSE(SharedMemory::Map(Duplicate(own), 4096, /*writable=*/true).ok());
  const char byte = 1;
  EXPECT_EQ(pwrite(own.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemoryTest, AnotherProcessCanWriteIfItIsForOthers) {
  auto own = OkValue(
      SharedMemory::Create("test", 4096, SharedMemory::Writer::kOthers));
  auto other =
      OkValue(SharedMemory::Map(Duplicate(own), 4096, /*writable=*/true));
  other.writable_bytes()[4095] = std::byte{5};
  EXPECT_EQ(own.bytes()[4095], std::byte{5});
}

// A process that reads behind the end of a shrunken file is killed.
TEST(SharedMemoryTest, NobodyCanChangeTheSize) {
  auto own = OkValue(
      SharedMemory::Create("test", 4096, SharedMemory::Writer::kOthers));
  EXPECT_EQ(ftruncate(own.fd(), 0), -1);
  EXPECT_EQ(ftruncate(own.fd(), 8192), -1);
  // Another seal could take the right to write from its owner.
  EXPECT_EQ(fcntl(own.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(SharedMemoryTest, RefusesAFileThatCouldShrink) {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  const auto mapped =
      SharedMemory::Map(std::move(file), 4096, /*writable=*/false);
  EXPECT_TRUE(absl::IsInvalidArgument(mapped.status())) << mapped.status();
}

TEST(SharedMemoryTest, RefusesAnotherSizeAndNoFile) {
  auto own = OkValue(
      SharedMemory::Create("test", 4096, SharedMemory::Writer::kOthers));
  EXPECT_TRUE(absl::IsInvalidArgument(
      SharedMemory::Map(Duplicate(own), 8192, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      SharedMemory::Map(FileDescriptor(), 4096, false).status()));
}

TEST(SharedMemoryTest, AnImpossibleSizeIsAnError) {
  const auto huge = SharedMemory::Create("test", int64_t{1} << 62,
                                         SharedMemory::Writer::kCreator);
  EXPECT_TRUE(absl::IsResourceExhausted(huge.status())) << huge.status();
}

}  // namespace
}  // namespace cohort
