#include "server/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/formats/safetensors.h"
#include "tests/checkpoint/example_state.h"
#include "tests/checkpoint/rewritten_manifest.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr int32_t kKeep = 3;

class CheckpointTest : public testing::Test {
 protected:
  void Write(int64_t version, int32_t keep = kKeep) {
    ExpectOk(WriteCheckpoint(files_, dir_.path(), keep, ExampleIdentity(),
                             ExampleState(version)));
  }

  absl::StatusOr<std::optional<Checkpoint>> Load() {
    problems_.clear();
    return LoadNewestCheckpoint(files_, dir_.path(), problems_);
  }

  // Writes the state and loads it again.
  void ExpectComesBack(const RunState& state) {
    ExpectOk(
        WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state));
    const auto loaded = OkValue(Load());
    EXPECT_THAT(problems_, IsEmpty());
    ExpectSameState(loaded->state, state);
  }

  int64_t LoadedVersion() {
    return cohort::LoadedVersion(dir_.path(), problems_);
  }

  std::vector<std::string> Names() {
    auto names = files_.List(dir_.path());
    EXPECT_TRUE(names.ok()) << names.status();
    return *std::move(names);
  }

  const TempDir dir_;
  FileSystem& files_ = RealFileSystem();
  std::vector<std::string> problems_;
};

TEST_F(CheckpointTest, LoadsEverythingThatWasWritten) {
  Write(7);
  const auto loaded = OkValue(OkValue(Load()));
  ExpectSameState(loaded.state, ExampleState(7));
  EXPECT_EQ(loaded.identity.run_id, ExampleIdentity().run_id);
  EXPECT_EQ(loaded.identity.seed, ExampleIdentity().seed);
  EXPECT_EQ(loaded.path, dir_.File("checkpoint-000000000007"));
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(CheckpointTest, LoadsTheStateOfATrainingProgram) {
  for (const size_t bytes : {size_t{256}, size_t{0}, size_t{1} << 16}) {
    RunState state = ProgramState(7);
    std::string text = *state.snapshot->front_end_state;
    text.resize(bytes, 'x');
    OwnSnapshot(state).front_end_state =
        std::make_shared<const std::string>(text);
    ExpectComesBack(state);
  }
}

TEST_F(CheckpointTest, LoadsTheStateThatProgramsKeepBesideTheModel) {
  RunState state = ExampleState(7);
  state.kept_state = std::make_shared<const std::string>("teacher\0\xff", 9);
  state.kept_moves_from = Version(3);
  ExpectComesBack(state);
}

// Ranks that a run had keep the numbers of their assignments.
TEST_F(CheckpointTest, LoadsTheStateOfARunThatHasShrunk) {
  RunState state = ExampleState(7);
  state.next_sequences.emplace_back(9);
  ASSERT_GT(state.next_sequences.size(), state.batch_sizes.size());
  ExpectComesBack(state);
}

TEST_F(CheckpointTest, SaysThatTheRunIsOver) {
  RunState state = ExampleState(7);
  state.ended = "all 12 \"epochs\" are done";
  ExpectComesBack(state);
}

TEST_F(CheckpointTest, KeepsTheOrderOfCallsThatWasLearnt) {
  RunState state = ExampleState(7);
  const CallPlace bn{.layer = 1, .call = 2};
  const CallPlace head{
      .part = 1, .layer = -1, .site = "net.py:\"head\"", .call = 0};
  CallPlace backward = head;
  backward.phase = ReducePhase::kBackward;
  backward.path = {2, 0, 1};
  state.call_order = {.step = Version(5),
                      .now = {{head, bn}, {bn, backward}},
                      .old = {{backward, head}}};
  ExpectComesBack(state);
}

TEST_F(CheckpointTest, WhatARunDoesNotUseIsNotWritten) {
  Write(7);
  const std::string path = dir_.File("checkpoint-000000000007/manifest");
  v1::RunState state;
  ASSERT_TRUE(state.ParseFromString(
      DecodeCheckpointManifest(path, ReadText(path))->state));
  EXPECT_FALSE(state.has_front_end_state() || state.has_ended() ||
               state.has_call_order() || state.has_kept_moves_from());
}

TEST_F(CheckpointTest, LoadsAStateWithoutMomentum) {
  RunState state = ExampleState(1);
  ModelSnapshot& plain = OwnSnapshot(state);
  plain.slots.assign(plain.weights.size(), {});
  ExpectComesBack(state);
}

TEST_F(CheckpointTest, LoadsEverySlotAndCount) {
  RunState state = ExampleState(1);
  ModelSnapshot& adaptive = OwnSnapshot(state);
  float value = 0.5;
  for (size_t p = 0; p < adaptive.slots.size(); ++p) {
    const Partition& partition = state.model->partitions[p];
    if (!partition.trainable) continue;
    for (const SlotKind& slot : AllSlots()) {
      auto buffer = std::make_shared<FloatBuffer>(partition.elements);
      for (float& element : buffer->mutable_span()) element = value++;
      adaptive.slots[p].*slot.buffer = std::move(buffer);
    }
    // Above 2^32, and different for the slices of one parameter.
    for (size_t i = 0; i < partition.slices.size(); ++i) {
      adaptive.slots[p].updates.push_back((int64_t{1} << 40) +
                                          static_cast<int64_t>(10 * p + i));
    }
  }
  ExpectComesBack(state);
  RewriteState(dir_.File("checkpoint-000000000001/manifest"), "updates {",
               "updates { updates: 7");
  EXPECT_THAT(Load(),
              IsError(kDataLoss, "updates of partition 0: got 2 numbers"));
}

TEST_F(CheckpointTest, TensorsAreWholeParametersUnderReadableNames) {
  Write(0);
  const std::string path =
      dir_.File("checkpoint-000000000000/state.safetensors");
  const auto file = OkValue(files_.ReadFile(path, kAnyFileSize));
  const auto content = OkValue(DecodeSafetensors(path, file));
  std::vector<std::string> names;
  for (const NamedTensor& t : content.tensors) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("weights/conv.weight", "weights/bn.weight",
                                 "weights/bn.bias", "weights/head.weight",
                                 "velocity/conv.weight", "velocity/bn.weight",
                                 "velocity/bn.bias"));
  std::vector<float> conv(6);
  content.tensors[0].bytes.CopyTo(absl::MakeSpan(
      reinterpret_cast<std::byte*>(conv.data()), conv.size() * sizeof(float)));
  EXPECT_THAT(conv, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(content.tensors[0].shape, ElementsAre(2, 3));
}

// Policies may hold secrets of a site; weights belong to the owner.
TEST_F(CheckpointTest, OnlyTheOwnerMayReadIt) {
  Write(1);
  struct stat info = {};
  ASSERT_EQ(stat(dir_.File("checkpoint-000000000001").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(dir_.File("checkpoint-000000000001/manifest").c_str(), &info),
            0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CheckpointTest, AnEmptyDirectoryHoldsNone) {
  EXPECT_FALSE(HoldsCheckpoints(files_, dir_.path()));
  const auto loaded = OkValue(Load());
  EXPECT_FALSE(loaded.has_value());
}

TEST_F(CheckpointTest, AMissingDirectoryIsNotFound) {
  EXPECT_FALSE(HoldsCheckpoints(files_, dir_.File("none")));
  EXPECT_THAT(LoadNewestCheckpoint(files_, dir_.File("none"), problems_),
              IsError(kNotFound, ""));
}

TEST_F(CheckpointTest, CopiesUnderOtherNamesAreNotLoaded) {
  Write(1);
  for (const char* name :
       {"checkpoint-backup", "checkpoint-9", "checkpoint-000000000009.old",
        "checkpoint-000000000009.000000", "checkpoint--00000000009"}) {
    std::filesystem::copy(dir_.File("checkpoint-000000000001"),
                          dir_.File(name));
  }
  const auto loaded = OkValue(Load());
  EXPECT_EQ(loaded->path, dir_.File("checkpoint-000000000001"));
}

TEST_F(CheckpointTest, KeepsTheNewestAndRemovesTheRest) {
  for (int64_t version = 1; version <= 5; ++version) Write(version);
  EXPECT_THAT(Names(),
              ElementsAre("checkpoint-000000000003", "checkpoint-000000000004",
                          "checkpoint-000000000005"));
  EXPECT_EQ(LoadedVersion(), 5);
}

// A restart that ignored version 3 continues from 2, and writes another 3.
TEST_F(CheckpointTest, ADamagedOneDoesNotCountAsKept) {
  const auto write = [&](int64_t version) {
    ExpectOk(WriteCheckpoint(files_, dir_.path(), 2, ExampleIdentity(),
                             ExampleState(version),
                             {"checkpoint-000000000003"}));
  };
  Write(3);
  write(3);
  // There is no other checkpoint to keep in its place.
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000003",
                                   StartsWith("checkpoint-000000000003.")));
  write(4);
  EXPECT_THAT(Names(), ElementsAre(StartsWith("checkpoint-000000000003."),
                                   "checkpoint-000000000004"));
}

TEST_F(CheckpointTest, ADamagedOneIsRemovedBeforeTheOlderOneThatIsWhole) {
  Write(2);
  Write(3);
  WriteText(dir_.File("checkpoint-000000000003/manifest"), "broken");
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_THAT((*loaded)->damaged, ElementsAre("checkpoint-000000000003"));
  ExpectOk(WriteCheckpoint(files_, dir_.path(), 2, ExampleIdentity(),
                           ExampleState(3), (*loaded)->damaged));
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000002",
                                   StartsWith("checkpoint-000000000003.")));
}

TEST_F(CheckpointTest, RemovesLeftoversOfInterruptedWrites) {
  std::filesystem::create_directory(dir_.File(".tmp-checkpoint-000000000004"));
  WriteText(dir_.File(".tmp-checkpoint-000000000004/state.safetensors"), "x");
  Write(5);
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000005"));
}

// A run that was restored to an older version reaches the newer one again. The
// order is by number and not by text.
TEST_F(CheckpointTest, TheSameVersionAgainIsTheNewer) {
  for (int i = 0; i < 12; ++i) Write(5, /*keep=*/2);
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000005.000010",
                                   "checkpoint-000000000005.000011"));
  const auto loaded = OkValue(Load());
  EXPECT_EQ(loaded->path, dir_.File("checkpoint-000000000005.000011"));
}

TEST_F(CheckpointTest, ADamagedOneIsPassedOverAndNamed) {
  Write(1);
  Write(2);
  WriteText(dir_.File("checkpoint-000000000002/state.safetensors"), "broken");
  EXPECT_EQ(LoadedVersion(), 1);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_THAT(problems_[0], HasSubstr("000002/state.safetensors: got 6 bytes"));
}

TEST_F(CheckpointTest, OneThatLacksAFileIsPassedOver) {
  Write(1);
  for (const char* file : {"/manifest", "/state.safetensors"}) {
    Write(2);
    std::filesystem::remove(dir_.File("checkpoint-000000000002") + file);
    EXPECT_EQ(LoadedVersion(), 1) << file;
    ASSERT_EQ(problems_.size(), 1u);
    EXPECT_THAT(problems_[0], HasSubstr(file));
    std::filesystem::remove_all(dir_.File("checkpoint-000000000002"));
  }
}

TEST_F(CheckpointTest, NothingWholeIsDataLoss) {
  Write(1);
  Write(2);
  for (const char* name :
       {"checkpoint-000000000001", "checkpoint-000000000002"}) {
    WriteText(dir_.File(name) + "/manifest", "{}");
  }
  const auto loaded = Load();
  EXPECT_THAT(loaded, IsError(kDataLoss, "none of 2 checkpoints is whole"));
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("checkpoint-000000000002"),
                                     HasSubstr("checkpoint-000000000001")));
  EXPECT_TRUE(HoldsCheckpoints(files_, dir_.path()));
}

// If one is kept, the newer but damaged checkpoint must not push out the only
// intact one.
TEST_F(CheckpointTest, ADamagedNewerOneDoesNotCostTheWrittenOne) {
  Write(9);
  WriteText(dir_.File("checkpoint-000000000009/manifest"), "broken");
  Write(5, /*keep=*/1);
  EXPECT_EQ(LoadedVersion(), 5);
  Write(6, /*keep=*/1);
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000006",
                                   "checkpoint-000000000009"));
}

// Checks only every seventh byte, to save time.
TEST_F(CheckpointTest, AChangedByteIsNoticed) {
  Write(1);
  for (const char* file : {"manifest", "state.safetensors"}) {
    const std::string path =
        dir_.File(std::string("checkpoint-000000000001/") + file);
    const std::string good = ReadText(path);
    for (size_t i = 0; i < good.size(); i += 7) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      WriteText(path, bad);
      const absl::Status status = Load().status();
      // A changed format number is damage too: the checksum is checked first.
      ASSERT_EQ(status.code(), kDataLoss)
          << file << ", byte " << i << ": " << status;
    }
    WriteText(path, good);
  }
  EXPECT_EQ(LoadedVersion(), 1);
}

// A server of an older release must not continue from an older checkpoint as if
// nothing had happened.
TEST_F(CheckpointTest, AnotherFormatIsAnErrorAndNotPassedOver) {
  Write(1);
  Write(2);
  const std::string path = dir_.File("checkpoint-000000000002");
  const std::string line = "cohort-checkpoint 7 8 0123456789abcdef ";
  const std::string sum =
      ChecksumText(ByteRope::CopyText(line + "state").Checksum());
  WriteText(path + "/manifest", line + sum + "\nstate");
  const auto expect_refused = [&](const std::string& file, const char* format) {
    const absl::Status status = Load().status();
    EXPECT_THAT(status,
                IsError(kFailedPrecondition,
                        path + file + ": got format " + format + ", want 6"));
    EXPECT_EQ(VerifyCheckpoint(files_, path), status);
  };
  expect_refused("/manifest", "7");
  // Formats 1 to 3 had another file in place of the manifest.
  std::filesystem::rename(path + "/manifest", path + "/manifest.json");
  expect_refused("/manifest.json", "below 6");
}

// As from a later release that forgot to count the format up.
TEST_F(CheckpointTest, UnknownFieldsAreAnErrorAndNotPassedOver) {
  Write(1);
  Write(2);
  const std::string path = dir_.File("checkpoint-000000000002/manifest");
  CheckpointManifest manifest = *DecodeCheckpointManifest(path, ReadText(path));
  // In field 4, the model, and there in field 3, the plan: field 15 is 1.
  manifest.state += "\x22\x04\x1a\x02\x78\x01";
  WriteText(path, EncodeCheckpointManifest(manifest));
  EXPECT_THAT(Load(), IsError(kFailedPrecondition,
                              path + ": got fields that this release"));
}

TEST_F(CheckpointTest, AManifestThatDoesNotFitItselfIsDamage) {
  Write(1);
  const std::string name = "checkpoint-000000000001";
  const auto expect = [&](const std::string& why, const std::string& from,
                          const std::string& to,
                          const std::string& until = "") {
    const std::string path = dir_.File(name + "/manifest");
    const std::string good = ReadText(path);
    RewriteState(path, from, to, until);
    EXPECT_THAT(Load(), IsError(kDataLoss, why));
    WriteText(path, good);
  };
  expect("partitions: got 4 elements from 0 of parameter 99",
         "count_elements: 4", "parameter: 99 count_elements: 4");
  expect("partitions: got 3 elements from 4 of parameter 0",
         "count_elements: 2", "count_elements: 3");
  expect("of parameter 0, trainable 0, want each element once, next 6 from 0",
         "partitions {", "partitions { slices { count_elements: 4 } } ",
         "partitions {");
  expect("partitions: got one without elements", "partitions {",
         "partitions {} ", "partitions {");
  expect("partitions: got 0 parameters, want 4", "partitions {", "", "plan {");
  expect("conv.weight: got shape [0,3]", "shape: 2", "shape: 0");
  expect("statistics: got 1 layers, want 2", "layers {", "", "layers {");
  expect("statistics: got none of any layer, want one entry a layer",
         "collected_version: 3", "}", "updates");
  expect("statistics: got none, want at least one kind", "statistics {", "",
         "updates");
  for (const std::string kind : {"sync", "auto", "batch"}) {
    expect("statistics: got kind '" + kind +
               "', want kinds that checkpoints keep, each once",
           "\"after\"", "\"" + kind + "\"");
  }
  expect("bn: got statistics of 1 and 1 channels, want 2", "channels: 1",
         "channels: 2");
  expect("weights of partition 0 are missing", "conv.weight", "other");
  expect("updates: got 2 partitions, want 3", "updates {", "", "updates {");
}

TEST_F(CheckpointTest, AFullDiskLeavesNothingBehindAndIsDeterminate) {
  Write(1);
  // Operation 2 is the tensor file.
  FaultyFileSystem files(
      {.at = 2, .error = absl::ResourceExhaustedError("full")});
  const absl::Status status = WriteCheckpoint(
      files, dir_.path(), kKeep, ExampleIdentity(), ExampleState(2));
  EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
  EXPECT_FALSE(IsIndeterminate(status));
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000001"));
}

TEST_F(CheckpointTest, AFailedRemovalIsToldAndTheNewOneIsThere) {
  Write(1);
  FaultyFileSystem counted;
  ExpectOk(WriteCheckpoint(counted, dir_.path(), 1, ExampleIdentity(),
                           ExampleState(2)));
  FaultyFileSystem files(
      {.at = counted.operations(), .error = absl::PermissionDeniedError("no")});
  const absl::Status status = WriteCheckpoint(
      files, dir_.path(), 1, ExampleIdentity(), ExampleState(3));
  EXPECT_THAT(status,
              IsError(kPermissionDenied, "checkpoint-000000000003 is written"));
  EXPECT_FALSE(IsIndeterminate(status));
  EXPECT_EQ(LoadedVersion(), 3);
}

}  // namespace
}  // namespace cohort
