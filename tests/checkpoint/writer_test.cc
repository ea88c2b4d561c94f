#include "server/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/example_state.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::HasSubstr;

void Ignore(Version, const absl::Status&) {}

// The first operation waits for `go`.
void HoldFirst(FaultyFileSystem& files, std::promise<void>& go) {
  files.before = [&go](int32_t operation) {
    if (operation == 1) go.get_future().wait();
  };
}

void ExpectHolds(const TempDir& dir, const RunState& state) {
  std::vector<std::string> problems;
  const auto loaded = OkValue(
      OkValue(LoadNewestCheckpoint(RealFileSystem(), dir.path(), problems)));
  ExpectSameState(loaded.state, state);
}

TEST(CheckpointWriterTest, WritesAndTells) {
  const TempDir dir;
  std::promise<absl::Status> told;
  CheckpointWriter writer(RealFileSystem(), dir.path(), 3, ExampleIdentity());
  ExpectOk(writer.Submit(ExampleState(4),
                         [&](Version version, const absl::Status& status) {
                           EXPECT_EQ(version, Version(4));
                           told.set_value(status);
                         }));
  EXPECT_EQ(told.get_future().get(), absl::OkStatus());
  ExpectHolds(dir, ExampleState(4));
}

// With several shards the state has only a part of the weights at first.
TEST(CheckpointWriterTest, WaitsForWhatOtherProcessesHold) {
  const TempDir dir;
  const RunState whole = ExampleState(4);
  RunState part = whole;
  OwnSnapshot(part).weights.back() = nullptr;
  absl::Status told = absl::UnknownError("not told");
  CheckpointWriter writer(RealFileSystem(), dir.path(), 3, ExampleIdentity(),
                          nullptr, {}, [&](RunState state) {
                            state.snapshot = whole.snapshot;
                            return state;
                          });
  ExpectOk(
      writer.Submit(part, [&](Version, const absl::Status& s) { told = s; }));
  writer.WaitIdle();
  EXPECT_EQ(told, absl::OkStatus());
  ExpectHolds(dir, whole);
}

TEST(CheckpointWriterTest, WritesNothingWithoutWhatOtherProcessesHold) {
  const TempDir dir;
  absl::Status told;
  CheckpointWriter writer(
      RealFileSystem(), dir.path(), 3, ExampleIdentity(), nullptr, {},
      [](const RunState&) { return absl::AbortedError("a shard is gone"); });
  ExpectOk(writer.Submit(ExampleState(4),
                         [&](Version, const absl::Status& s) { told = s; }));
  writer.WaitIdle();
  EXPECT_EQ(told, absl::UnavailableError("a shard is gone"));
  const auto names = OkValue(RealFileSystem().List(dir.path()));
  EXPECT_THAT(names, testing::IsEmpty());
  // The next one may be whole.
  EXPECT_TRUE(writer.Submit(ExampleState(5), Ignore).ok());
}

TEST(CheckpointWriterTest, RefusesASecondOneWhileBusy) {
  const TempDir dir;
  std::promise<void> go;
  FaultyFileSystem files;
  HoldFirst(files, go);
  CheckpointWriter writer(files, dir.path(), 3, ExampleIdentity());
  ASSERT_TRUE(writer.Submit(ExampleState(1), Ignore).ok());
  EXPECT_THAT(writer.Submit(ExampleState(2), Ignore),
              IsError(kUnavailable, "busy"));
  go.set_value();
  writer.WaitIdle();
  EXPECT_TRUE(writer.Submit(ExampleState(2), Ignore).ok());
}

TEST(CheckpointWriterTest, TheNewestOfThoseThatWaitIsWrittenNext) {
  const TempDir dir;
  std::promise<void> go;
  FaultyFileSystem files;
  HoldFirst(files, go);
  CheckpointWriter writer(files, dir.path(), 3, ExampleIdentity());
  std::vector<int64_t> written;
  for (int64_t version = 1; version <= 3; ++version) {
    ExpectOk(writer.SubmitNext(ExampleState(version),
                               [&written](Version v, const absl::Status& s) {
                                 EXPECT_TRUE(s.ok()) << s;
                                 written.push_back(v.value());
                               }));
  }
  go.set_value();
  writer.WaitIdle();
  EXPECT_EQ(written, (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(writer.Submit(ExampleState(4), Ignore).ok());
}

TEST(CheckpointWriterTest, AStateThatWaitsIsToldOfAnIndeterminateWrite) {
  const TempDir dir;
  std::promise<void> go;
  // Operation 5 is the rename.
  FaultyFileSystem files({.at = 5, .error = absl::InternalError("bad disk")});
  HoldFirst(files, go);
  CheckpointWriter writer(files, dir.path(), 3, ExampleIdentity());
  ASSERT_TRUE(writer.Submit(ExampleState(1), Ignore).ok());
  absl::Status told;
  ExpectOk(writer.SubmitNext(
      ExampleState(2), [&told](Version, const absl::Status& s) { told = s; }));
  go.set_value();
  writer.WaitIdle();
  EXPECT_THAT(std::string(told.message()), HasSubstr("bad disk"));
  EXPECT_EQ(files.operations(), 5);
}

TEST(CheckpointWriterTest, TriesAgainAfterAFullDisk) {
  const TempDir dir;
  absl::Status first;
  absl::Status second;
  FaultyFileSystem files(
      {.at = 2, .error = absl::ResourceExhaustedError("full")});
  CheckpointWriter writer(files, dir.path(), 3, ExampleIdentity());
  ExpectOk(writer.Submit(ExampleState(1),
                         [&](Version, const absl::Status& s) { first = s; }));
  writer.WaitIdle();
  ExpectOk(writer.Submit(ExampleState(2),
                         [&](Version, const absl::Status& s) { second = s; }));
  writer.WaitIdle();
  EXPECT_EQ(first, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(second, absl::OkStatus());
}

TEST(CheckpointWriterTest, StopsAfterAnIndeterminateWriteAndSaysWhy) {
  const TempDir dir;
  // Operation 5 is the rename.
  FaultyFileSystem files({.at = 5, .error = absl::InternalError("bad disk")});
  CheckpointWriter writer(files, dir.path(), 3, ExampleIdentity());
  ASSERT_TRUE(writer.Submit(ExampleState(1), Ignore).ok());
  writer.WaitIdle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(writer.Submit(ExampleState(2), Ignore),
                IsError(kInternal, "bad disk"));
  }
  EXPECT_EQ(files.operations(), 5);
}

TEST(CheckpointWriterTest, TheDestructorWaitsForTheWrite) {
  const TempDir dir;
  bool told = false;
  {
    CheckpointWriter writer(RealFileSystem(), dir.path(), 3, ExampleIdentity());
    ExpectOk(writer.Submit(ExampleState(1),
                           [&](Version, const absl::Status&) { told = true; }));
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(HoldsCheckpoints(RealFileSystem(), dir.path()));
}

}  // namespace
}  // namespace cohort
