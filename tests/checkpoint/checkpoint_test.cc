#include "server/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/formats/safetensors.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/faulty_file_system.h"
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
    const absl::Status status = WriteCheckpoint(
        files_, dir_.path(), keep, ExampleIdentity(), ExampleState(version));
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::StatusOr<std::optional<Checkpoint>> Load() {
    problems_.clear();
    return LoadNewestCheckpoint(files_, dir_.path(), problems_);
  }

  // -1 if none was loaded.
  int64_t LoadedVersion() {
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok() || !loaded->has_value()) return -1;
    return (*loaded)->state.snapshot->version.value();
  }

  std::vector<std::string> Names() {
    auto names = files_.List(dir_.path());
    EXPECT_TRUE(names.ok()) << names.status();
    return *std::move(names);
  }

  // Replaces the manifest's body with the result of `change`, and updates the
  // checksum.
  template <typename Change>
  void Rewrite(const std::string& name, Change change) {
    const std::string path = dir_.File(name + "/manifest.json");
    auto whole = nlohmann::ordered_json::parse(ReadText(path));
    change(whole["body"]);
    const std::string body = whole["body"].dump();
    whole["xxh3"] = ChecksumText(Xxh3(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(body.data()), body.size())));
    WriteText(path, whole.dump(1) + "\n");
  }

  const TempDir dir_;
  FileSystem& files_ = RealFileSystem();
  std::vector<std::string> problems_;
};

TEST_F(CheckpointTest, LoadsEverythingThatWasWritten) {
  Write(7);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(loaded->has_value());
  ExpectSameState((*loaded)->state, ExampleState(7));
  EXPECT_EQ((*loaded)->identity.run_id, ExampleIdentity().run_id);
  EXPECT_EQ((*loaded)->identity.seed, ExampleIdentity().seed);
  EXPECT_EQ((*loaded)->identity.policy, ExampleIdentity().policy);
  EXPECT_EQ((*loaded)->path, dir_.File("checkpoint-000000000007"));
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(CheckpointTest, LoadsTheStateOfATrainingProgram) {
  for (const size_t bytes : {size_t{256}, size_t{0}, size_t{1} << 16}) {
    RunState state = ProgramState(7);
    auto snapshot = std::make_shared<ModelSnapshot>(*state.snapshot);
    std::string text = *snapshot->front_end_state;
    text.resize(bytes, 'x');
    snapshot->front_end_state = std::make_shared<const std::string>(text);
    state.snapshot = std::move(snapshot);
    const TempDir dir;
    const absl::Status written =
        WriteCheckpoint(files_, dir.path(), kKeep, ExampleIdentity(), state);
    ASSERT_TRUE(written.ok()) << written;
    const auto loaded = LoadNewestCheckpoint(files_, dir.path(), problems_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_TRUE(loaded->has_value()) << bytes;
    ExpectSameState((*loaded)->state, state);
  }
}

// Ranks that a run had keep the numbers of their assignments.
TEST_F(CheckpointTest, LoadsTheStateOfARunThatHasShrunk) {
  RunState state = ExampleState(7);
  state.next_sequences.emplace_back(9);
  ASSERT_GT(state.next_sequences.size(), state.batch_sizes.size());
  ASSERT_TRUE(
      WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state)
          .ok());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(problems_, IsEmpty());
  ExpectSameState((*loaded)->state, state);
}

TEST_F(CheckpointTest, SaysThatTheRunIsOver) {
  RunState state = ExampleState(7);
  state.ended = "all 12 \"epochs\" are done";
  ASSERT_TRUE(
      WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state)
          .ok());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(problems_, IsEmpty());
  ExpectSameState((*loaded)->state, state);
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
  ASSERT_TRUE(
      WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state)
          .ok());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(problems_, IsEmpty());
  ExpectSameState((*loaded)->state, state);
}

TEST_F(CheckpointTest, WhatARunDoesNotUseIsNotWritten) {
  Write(7);
  const std::string text =
      ReadText(dir_.File("checkpoint-000000000007/manifest.json"));
  for (const char* name : {"front_end_state", "ended", "call_order"}) {
    EXPECT_THAT(text, testing::Not(HasSubstr(name)));
  }
}

TEST_F(CheckpointTest, SettingsOfAWrongTypeAreDamage) {
  Write(7);
  Rewrite("checkpoint-000000000007",
          [](auto& body) { body["state"]["settings"]["lease"] = 5; });
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, LoadsAStateWithoutMomentum) {
  RunState state = ExampleState(1);
  auto plain = std::make_shared<ModelSnapshot>(*state.snapshot);
  plain->slots.assign(plain->weights.size(), {});
  state.snapshot = plain;
  ASSERT_TRUE(
      WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state)
          .ok());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSameState((*loaded)->state, state);
}

TEST_F(CheckpointTest, LoadsEverySlotAndCount) {
  RunState state = ExampleState(1);
  auto adaptive = std::make_shared<ModelSnapshot>(*state.snapshot);
  float value = 0.5;
  for (size_t p = 0; p < adaptive->slots.size(); ++p) {
    const Partition& partition = state.model->partitions[p];
    if (!partition.trainable) continue;
    for (const SlotKind& slot : AllSlots()) {
      auto buffer = std::make_shared<FloatBuffer>(partition.elements);
      for (float& element : buffer->mutable_span()) element = value++;
      adaptive->slots[p].*slot.buffer = std::move(buffer);
    }
    // Above 2^32, and different for the slices of one parameter.
    for (size_t i = 0; i < partition.slices.size(); ++i) {
      adaptive->slots[p].updates.push_back((int64_t{1} << 40) +
                                           static_cast<int64_t>(10 * p + i));
    }
  }
  state.snapshot = adaptive;
  ASSERT_TRUE(
      WriteCheckpoint(files_, dir_.path(), kKeep, ExampleIdentity(), state)
          .ok());
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSameState((*loaded)->state, state);
}

TEST_F(CheckpointTest, TensorsAreWholeParametersUnderReadableNames) {
  Write(0);
  const std::string path =
      dir_.File("checkpoint-000000000000/state.safetensors");
  const auto file = files_.ReadFile(path, kAnyFileSize);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto content = DecodeSafetensors(path, *file);
  ASSERT_TRUE(content.ok()) << content.status();
  std::vector<std::string> names;
  for (const NamedTensor& t : content->tensors) names.push_back(t.name);
  EXPECT_THAT(
      names,
      ElementsAre(
          "weights/conv.weight", "weights/bn.weight", "weights/bn.bias",
          "weights/head.weight", "velocity/conv.weight", "velocity/bn.weight",
          "velocity/bn.bias", "statistics/sync/bn/mean",
          "statistics/sync/bn/variance", "statistics/sync/bn_plain/mean",
          "statistics/sync/bn_plain/variance", "statistics/after/bn/mean",
          "statistics/after/bn/variance", "statistics/after/bn_plain/mean",
          "statistics/after/bn_plain/variance"));
  std::vector<float> conv(6);
  content->tensors[0].bytes.CopyTo(absl::MakeSpan(
      reinterpret_cast<std::byte*>(conv.data()), conv.size() * sizeof(float)));
  EXPECT_THAT(conv, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(content->tensors[0].shape, ElementsAre(2, 3));
}

// Policies may hold secrets of a site; weights belong to the owner.
TEST_F(CheckpointTest, OnlyTheOwnerMayReadIt) {
  Write(1);
  struct stat info = {};
  ASSERT_EQ(stat(dir_.File("checkpoint-000000000001").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(
      stat(dir_.File("checkpoint-000000000001/manifest.json").c_str(), &info),
      0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CheckpointTest, AnEmptyDirectoryHoldsNone) {
  EXPECT_FALSE(HoldsCheckpoints(files_, dir_.path()));
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->has_value());
}

TEST_F(CheckpointTest, AMissingDirectoryIsNotFound) {
  EXPECT_FALSE(HoldsCheckpoints(files_, dir_.File("none")));
  EXPECT_EQ(LoadNewestCheckpoint(files_, dir_.File("none"), problems_)
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, CopiesUnderOtherNamesAreNotLoaded) {
  Write(1);
  for (const char* name :
       {"checkpoint-backup", "checkpoint-9", "checkpoint-000000000009.old",
        "checkpoint-000000000009.000000", "checkpoint--00000000009"}) {
    std::filesystem::copy(dir_.File("checkpoint-000000000001"),
                          dir_.File(name));
  }
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->path, dir_.File("checkpoint-000000000001"));
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
    const absl::Status status =
        WriteCheckpoint(files_, dir_.path(), 2, ExampleIdentity(),
                        ExampleState(version), {"checkpoint-000000000003"});
    ASSERT_TRUE(status.ok()) << status;
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
  WriteText(dir_.File("checkpoint-000000000003/manifest.json"), "broken");
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_THAT((*loaded)->damaged, ElementsAre("checkpoint-000000000003"));
  ASSERT_TRUE(WriteCheckpoint(files_, dir_.path(), 2, ExampleIdentity(),
                              ExampleState(3), (*loaded)->damaged)
                  .ok());
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
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->path, dir_.File("checkpoint-000000000005.000011"));
}

TEST_F(CheckpointTest, ADamagedOneIsPassedOverAndNamed) {
  Write(1);
  Write(2);
  WriteText(dir_.File("checkpoint-000000000002/state.safetensors"), "broken");
  EXPECT_EQ(LoadedVersion(), 1);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_THAT(problems_[0],
              HasSubstr("checkpoint-000000000002/state.safetensors: got 6 "
                        "bytes, want "));
}

TEST_F(CheckpointTest, OneThatLacksAFileIsPassedOver) {
  Write(1);
  for (const char* file : {"/manifest.json", "/state.safetensors"}) {
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
    WriteText(dir_.File(name) + "/manifest.json", "{}");
  }
  const auto loaded = Load();
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(loaded.status().message()),
              HasSubstr("none of 2 checkpoints is whole; the newest: "));
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("checkpoint-000000000002"),
                                     HasSubstr("checkpoint-000000000001")));
  EXPECT_TRUE(HoldsCheckpoints(files_, dir_.path()));
}

// If one is kept, the newer but damaged checkpoint must not push out the only
// intact one.
TEST_F(CheckpointTest, ADamagedNewerOneDoesNotCostTheWrittenOne) {
  Write(9);
  WriteText(dir_.File("checkpoint-000000000009/manifest.json"), "broken");
  Write(5, /*keep=*/1);
  EXPECT_EQ(LoadedVersion(), 5);
  Write(6, /*keep=*/1);
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000006",
                                   "checkpoint-000000000009"));
}

// Checks only every seventh byte, to save time.
TEST_F(CheckpointTest, AChangedByteIsNoticed) {
  Write(1);
  for (const char* file : {"manifest.json", "state.safetensors"}) {
    const std::string path =
        dir_.File(std::string("checkpoint-000000000001/") + file);
    const std::string good = ReadText(path);
    for (size_t i = 0; i < good.size(); i += 7) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      WriteText(path, bad);
      const absl::Status status = Load().status();
      // A changed format number is damage too: the checksum is checked first.
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss)
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
  Rewrite("checkpoint-000000000002", [](auto& body) { body["format"] = 4; });
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("manifest.json: got format 4, want 3"));
}

TEST_F(CheckpointTest, AManifestThatDoesNotFitItselfIsDamage) {
  Write(1);
  const std::string name = "checkpoint-000000000001";
  const auto expect = [&](auto change, const std::string& why) {
    const std::string path = dir_.File(name + "/manifest.json");
    const std::string good = ReadText(path);
    Rewrite(name, change);
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    WriteText(path, good);
  };
  expect(
      [](auto& body) { body["model"]["partitions"][0]["slices"][0][0] = 99; },
      "its partitions do not match");
  expect([](auto& body) { body["model"]["partitions"][1]["slices"][0][2] = 3; },
         "its partitions do not match");
  expect([](auto& body) { body["model"]["partitions"].clear(); },
         "its partitions do not match");
  expect([](auto& body) { body["model"]["parameters"][0]["shape"][0] = 0; },
         "conv.weight: got shape [0,3]");
  expect([](auto& body) { body["statistics"][1]["batches_tracked"] = {1}; },
         "got batches_tracked of 1 layers, want 2");
  expect([](auto& body) { body["statistics"].clear(); },
         "got no statistics, want at least one kind");
  expect([](auto& body) { body["statistics"][1]["kind"] = "sync"; },
         "got statistics of kind 'sync', want known kinds, each once");
  expect([](auto& body) { body["statistics"][1]["kind"] = "auto"; },
         "got statistics of kind 'auto', want known kinds, each once");
  expect([](auto& body) { body["model"]["batch_norms"][0]["channels"] = 2; },
         "statistics/sync/bn/mean is missing or has the wrong type or shape");
  expect([](auto& body) { body["model"]["parameters"][0]["name"] = "other"; },
         "weights of partition 0 are missing");
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
  ASSERT_TRUE(WriteCheckpoint(counted, dir_.path(), 1, ExampleIdentity(),
                              ExampleState(2))
                  .ok());
  FaultyFileSystem files(
      {.at = counted.operations(), .error = absl::PermissionDeniedError("no")});
  const absl::Status status = WriteCheckpoint(
      files, dir_.path(), 1, ExampleIdentity(), ExampleState(3));
  EXPECT_EQ(status.message(),
            "checkpoint-000000000003 is written, but an older one cannot be "
            "removed: no");
  EXPECT_FALSE(IsIndeterminate(status));
  EXPECT_EQ(LoadedVersion(), 3);
}

}  // namespace
}  // namespace cohort
