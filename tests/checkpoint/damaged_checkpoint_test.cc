// Any damaged file in place of a checkpoint is reported by name, and the
// checkpoint before it is used.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/checkpoint/example_state.h"
#include "tests/checkpoint/rewritten_manifest.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kOlder = 6;
constexpr int64_t kNewer = 7;

class DamagedCheckpointTest : public testing::Test {
 protected:
  DamagedCheckpointTest() {
    for (const int64_t version : {kOlder, kNewer}) {
      ExpectOk(WriteCheckpoint(RealFileSystem(), dir_.path(), 2,
                               ExampleIdentity(), ExampleState(version)));
    }
  }

  std::string Newest(const std::string& file) const {
    return dir_.File("checkpoint-000000000007/" + file);
  }

  // The version that a server would continue from; records its messages about
  // other checkpoints.
  int64_t Loaded() { return LoadedVersion(dir_.path(), problems_); }

  const TempDir dir_;
  std::vector<std::string> problems_;
};

// Each byte with one bit flipped, removed, doubled, and with a space before it.
std::vector<std::string> MutationsAt(const std::string& good, size_t at) {
  std::string flipped = good;
  flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
  std::string other_case = good;
  other_case[at] = static_cast<char>(other_case[at] ^ 0x20);
  std::string shorter = good;
  shorter.erase(at, 1);
  std::string twice = good;
  twice.insert(at, 1, good[at]);
  std::string spaced = good;
  spaced.insert(at, 1, ' ');
  return {flipped, other_case, shorter, twice, spaced};
}

TEST_F(DamagedCheckpointTest, EveryMutationOfTheManifestIsNoticed) {
  const std::string good = ReadText(Newest("manifest"));
  ASSERT_TRUE(DecodeCheckpointManifest("m", good).ok());
  int64_t mutations = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const std::string& bad : MutationsAt(good, at)) {
      ASSERT_NE(bad, good);
      ++mutations;
      EXPECT_FALSE(DecodeCheckpointManifest("m", bad).ok())
          << "byte " << at << ": " << bad.substr(at > 20 ? at - 20 : 0, 40);
    }
  }
  EXPECT_FALSE(DecodeCheckpointManifest("m", good + " ").ok());
  EXPECT_GT(mutations, 2'000);
}

TEST_F(DamagedCheckpointTest, MutatedFilesAreNeverLoadedAsSomethingElse) {
  for (const char* file : {"manifest", "state.safetensors"}) {
    const std::string good = ReadText(Newest(file));
    for (size_t at = 0; at < good.size(); at += 41) {
      for (const std::string& bad : MutationsAt(good, at)) {
        WriteText(Newest(file), bad);
        EXPECT_EQ(Loaded(), kOlder) << file << ", byte " << at;
        ASSERT_EQ(problems_.size(), 1u);
        EXPECT_THAT(problems_[0], HasSubstr(Newest(file)));
      }
    }
    WriteText(Newest(file), good);
  }
  EXPECT_EQ(Loaded(), kNewer);
}

TEST_F(DamagedCheckpointTest, AFileOfATerabyteIsNotRead) {
  for (const char* file : {"state.safetensors", "manifest"}) {
    std::filesystem::resize_file(Newest(file), uintmax_t{1} << 40);
    EXPECT_EQ(Loaded(), kOlder) << file;
    ASSERT_EQ(problems_.size(), 1u);
    EXPECT_THAT(problems_[0],
                HasSubstr(Newest(file) + ": got 1099511627776 bytes"));
    EXPECT_EQ(VerifyCheckpoint(RealFileSystem(), Newest(".")).code(),
              kDataLoss);
  }
}

TEST_F(DamagedCheckpointTest, WhatIsNoRegularFileIsNotWaitedFor) {
  for (const char* file : {"state.safetensors", "manifest"}) {
    const std::string path = Newest(file);
    const std::string good = ReadText(path);
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(Loaded(), kOlder) << file;
    EXPECT_THAT(problems_.at(0), HasSubstr(path + ": got a named pipe"));
    EXPECT_EQ(VerifyCheckpoint(RealFileSystem(), Newest(".")).code(),
              kDataLoss);
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    EXPECT_EQ(Loaded(), kOlder) << file;
    EXPECT_THAT(problems_.at(0), HasSubstr("got a directory, want"));
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    EXPECT_EQ(Loaded(), kOlder) << file;
    EXPECT_THAT(problems_.at(0), HasSubstr("got a symbolic link, want"));
    std::filesystem::remove(path);
    WriteText(path, good);
  }
}

// Under a checksum that is right: without one they are not parsed.
TEST_F(DamagedCheckpointTest, DeepNestingDoesNotExhaustTheStack) {
  // Each byte begins a group of field 1.
  const std::string text =
      EncodeCheckpointManifest({.state = std::string(1'000'000, '\x0b')});
  WriteText(Newest("manifest"), text);
  EXPECT_EQ(Loaded(), kOlder);
  EXPECT_THAT(problems_.at(0), HasSubstr("it is no RunState"));
}

// Protobuf takes what ends where a field does for a whole message.
TEST_F(DamagedCheckpointTest, ACutAtTheEndOfAFieldIsNoticed) {
  const std::string good = ReadText(Newest("manifest"));
  const std::string state = DecodeCheckpointManifest("m", good)->state;
  int32_t messages = 0;
  for (size_t size = 0; size < state.size(); ++size) {
    v1::RunState cut;
    messages += cut.ParseFromString(state.substr(0, size)) ? 1 : 0;
    const std::string bad = good.substr(0, good.size() - state.size() + size);
    EXPECT_FALSE(DecodeCheckpointManifest("m", bad).ok()) << size;
  }
  EXPECT_GT(messages, 20);
}

// A checksum only proves that the file is unchanged since it was written.
TEST_F(DamagedCheckpointTest, NumbersUnderAValidChecksumAreCheckedToo) {
  const std::string good = ReadText(Newest("manifest"));
  const std::string huge = absl::StrCat(INT64_MAX);
  struct Case {
    const char* from;
    std::string to;
    const char* problem;
  };
  const Case cases[] = {
      {"version: 7", "version: -1", "version: got -1, want 0 to"},
      {R"(run_id: "run-\"1\"")", "", "run_id: got 0 characters"},
      {"seed", "run_name: 'No Label' seed", "want a DNS label"},
      {"cursor: 24", "cursor: -1", "cursor: got -1, want 0 to 59"},
      {"cursor: 24", "cursor: 60", "cursor: got 60, want 0 to 59"},
      {"cursor: 24", "cursor: " + huge, "cursor: got 9223372036854775807"},
      {"data_epoch: 3", "data_epoch: -4", "data_epoch: got -4"},
      {"data_epoch: 3", "data_epoch: " + huge, "data_epoch: got 92233720"},
      {"samples: 12", "samples: -12", "samples: got -12"},
      {"samples: 12", "samples: " + huge, "samples: got 9223372036854775807"},
      {"policy_epoch: 2", "policy_epoch: " + huge, "policy_epoch: got 92"},
      {"policy_epoch: 2", "policy_epoch: 1", "got 2, want 2 to 1"},
      {"batch_sizes: 32", "batch_sizes: -32", "batch_sizes: got -32"},
      {"batch_sizes: 32", "batch_sizes: " + huge, "batch_sizes: got 92"},
      {"next_sequences: 6", "", "got 1 and 2, want one entry per rank"},
      {"next_sequences: 6", "next_sequences: -1", "next_sequences: got -1"},
      {"next_sequences: 6", "next_sequences: " + huge, "sequences: got 92"},
      {"incarnation: 9", "incarnation: -9", "next_incarnation: got -9"},
      {"incarnation: 9", "incarnation: " + huge, "next_incarnation: got 92"},
      {"end: 60", "end: 61", "reissue: got [50, 61)"},
      {"begin: 50", "begin: 61", "reissue: got [61, 60)"},
      {"epoch: 2", "epoch: -1", "of epoch -1"},
      {"epoch: 2", "epoch: 4", "of epoch 4"},
      {"reissue {", "reissue { epoch: 3 begin: 10 end: 20 } reissue {",
       "each once"},
      {"end: 16", "end: 25", "ranges below 24"},
      {" samples: 6\n", " samples: -1 ", "policy_history.samples: got -1"},
      {"  version: 3", "version: -1", "policy_history.version: got -1"},
      {"  policy_epoch: 2", "policy_epoch: 1", "policy_epoch: got 1, want 2"},
      {"updates {", "updates { updates: -1", "updates: got -1"},
      {"collected_version: 3", "collected_version: -1", "version: got -1"},
      {"layer: 1", "layer: 2", "got 2, want each index below 2 once"},
      {"tracked: 7", "tracked: -1", "bn: got -1 batches tracked"},
      {"mean: 0.5", "mean: [0, 1]", "bn: got statistics of 2 and 1"},
      {"mean: 0.5", "mean: 1e40", "bn: got the mean 1e+40"},
      {"train_samples: 60", "", "plan.train_samples: got 0"},
      {"samples: 60", "samples: " + huge, "train_samples: got 92"},
      {"test_samples: 10", "test_samples: -1", "plan.test_samples: got -1"},
      {"loss_reference: 0.1", "", "plan.loss_reference: got 0"},
      {"reference: 0.1", "reference: nan", "loss_reference: got nan"},
      {"plan {", "plan { own_data: true", "train_samples: got 60, want 0 to 0"},
      {"plan {", "plan { optimizer { name: 'a' } optimizer { name: 'a' }",
       "plan.optimizer: got 'a' twice"},
      {"elements: 4", "elements: " + huge, "got 9223372036854775807 elements"},
      {"channels: 1", "channels: 4611686018427387904",
       "bn: got statistics of 1 and 1 channels, want 4611686018427387904"},
      {"shape: 2", "rate_group: -1 shape: 2", "got rate group -1"},
      {"shape: 2", "rate_group: 1024 shape: 2", "got rate group 1024"},
      {"seed", "kept_moves_from: -1 seed", "kept_moves_from: got -1"},
      {"seed", "kept_moves_from: 0 seed", "kept_state: got none"},
      {"seed", "call_order { now {} } seed", "key.phase: got 0"},
      {"seed",
       absl::StrCat("front_end_state: '", std::string(65537, 'x'), "' seed"),
       "front_end_state: got 65537 bytes, want at most 65536"},
  };
  for (const Case& c : cases) {
    RewriteState(Newest("manifest"), c.from, c.to);
    EXPECT_EQ(Loaded(), kOlder) << c.problem;
    ASSERT_EQ(problems_.size(), 1u) << c.problem;
    EXPECT_THAT(problems_[0], HasSubstr(c.problem));
    EXPECT_THAT(problems_[0], HasSubstr("checkpoint-000000000007"));
    WriteText(Newest("manifest"), good);
  }
  EXPECT_EQ(Loaded(), kNewer);
}

TEST_F(DamagedCheckpointTest, SizesUnderAValidChecksumAreCheckedToo) {
  CheckpointManifest manifest =
      *DecodeCheckpointManifest("m", ReadText(Newest("manifest")));
  for (const int64_t bytes : {INT64_MAX, int64_t{-1}}) {
    manifest.tensors.bytes = bytes;
    WriteText(Newest("manifest"), EncodeCheckpointManifest(manifest));
    EXPECT_EQ(Loaded(), kOlder);
    EXPECT_THAT(problems_.at(0), ContainsRegex(absl::StrCat("want .*", bytes)));
  }
}

// Memory is not allocated for data that the manifest claims but the tensor file
// lacks.
TEST_F(DamagedCheckpointTest, AParameterOfATerabyteThatIsNotThere) {
  const std::string path = Newest("manifest");
  RewriteState(path, "batch_norms {",
               "parameters { name: 'huge' shape: 274877906944 } batch_norms {");
  RewriteState(path, "plan {",
               "partitions { slices { parameter: 4 count_elements: "
               "274877906944 } } plan {");
  RewriteState(path, "updates {", "updates {} updates {");
  EXPECT_EQ(Loaded(), kOlder);
  EXPECT_THAT(problems_.at(0), HasSubstr("are missing"));
}

// It would take the place of one that can be read.
TEST_F(DamagedCheckpointTest, AStateThatCouldNotBeReadBackIsNotWritten) {
  RunState state = ExampleState(8);
  ModelSnapshot& snapshot = OwnSnapshot(state);
  StatisticsSets sets = *snapshot.statistics;
  sets[0].layers[0].variance[0] = -1;
  snapshot.statistics = std::make_shared<const StatisticsSets>(sets);
  EXPECT_THAT(WriteCheckpoint(RealFileSystem(), dir_.path(), 1,
                              ExampleIdentity(), state),
              IsError(kDataLoss, "bn: got the mean 0.5 and variance -1"));
  // Nor would its export.
  sets[0].layers[0].variance[0] = 1e40;
  snapshot.statistics = std::make_shared<const StatisticsSets>(sets);
  EXPECT_THAT(WriteCheckpoint(RealFileSystem(), dir_.path(), 1,
                              ExampleIdentity(), state),
              IsError(kDataLoss, ""));
  EXPECT_EQ(Loaded(), kNewer);
  EXPECT_THAT(problems_, IsEmpty());
}

}  // namespace
}  // namespace cohort
