// Any damaged file in place of a checkpoint is reported by name, and the
// checkpoint before it is used.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr int64_t kOlder = 6;
constexpr int64_t kNewer = 7;

class DamagedCheckpointTest : public testing::Test {
 protected:
  DamagedCheckpointTest() {
    for (const int64_t version : {kOlder, kNewer}) {
      EXPECT_TRUE(WriteCheckpoint(RealFileSystem(), dir_.path(), 2,
                                  ExampleIdentity(), ExampleState(version))
                      .ok());
    }
  }

  std::string Newest(const std::string& file) const {
    return dir_.File("checkpoint-000000000007/" + file);
  }

  // The version that a server would continue from; records its messages about
  // other checkpoints.
  int64_t Loaded() {
    problems_.clear();
    const auto loaded =
        LoadNewestCheckpoint(RealFileSystem(), dir_.path(), problems_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok() || !loaded->has_value()) return -1;
    const int64_t version = (*loaded)->state.snapshot->version.value();
    ExpectSameState((*loaded)->state, ExampleState(version));
    return version;
  }

  // Rewrites the newest manifest with this body, under a correct checksum.
  void Rewrite(const std::function<void(Json&)>& change) {
    Json whole = Json::parse(ReadText(Newest("manifest.json")));
    change(whole["body"]);
    const std::string body = whole["body"].dump();
    whole["xxh3"] = ChecksumText(Xxh3(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(body.data()), body.size())));
    WriteText(Newest("manifest.json"), whole.dump(1) + "\n");
  }

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
  const std::string good = ReadText(Newest("manifest.json"));
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
  EXPECT_GT(mutations, 10'000);
}

TEST_F(DamagedCheckpointTest, MutatedFilesAreNeverLoadedAsSomethingElse) {
  for (const char* file : {"manifest.json", "state.safetensors"}) {
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
  for (const char* file : {"state.safetensors", "manifest.json"}) {
    std::filesystem::resize_file(Newest(file), uintmax_t{1} << 40);
    EXPECT_EQ(Loaded(), kOlder) << file;
    ASSERT_EQ(problems_.size(), 1u);
    EXPECT_THAT(problems_[0],
                HasSubstr(Newest(file) + ": got 1099511627776 bytes, want at "
                                         "most "));
    EXPECT_EQ(VerifyCheckpoint(RealFileSystem(), Newest(".")).code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST_F(DamagedCheckpointTest, WhatIsNoRegularFileIsNotWaitedFor) {
  for (const char* file : {"state.safetensors", "manifest.json"}) {
    const std::string path = Newest(file);
    const std::string good = ReadText(path);
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(Loaded(), kOlder) << file;
    EXPECT_THAT(problems_.at(0),
                HasSubstr(path + ": got a named pipe, want a regular file"));
    EXPECT_EQ(VerifyCheckpoint(RealFileSystem(), Newest(".")).code(),
              absl::StatusCode::kDataLoss);
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

TEST_F(DamagedCheckpointTest, DeepNestingDoesNotExhaustTheStack) {
  for (const std::string& open : {std::string("["), std::string("{\"a\":")}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += open;
    WriteText(Newest("manifest.json"), text);
    EXPECT_EQ(Loaded(), kOlder);
    EXPECT_THAT(problems_.at(0), HasSubstr("nests deeper than 32 levels"));
  }
}

// A checksum only proves that the file is unchanged since it was written.
TEST_F(DamagedCheckpointTest, NumbersUnderAValidChecksumAreCheckedToo) {
  const std::string good = ReadText(Newest("manifest.json"));
  struct Case {
    const char* pointer;
    Json value;
    const char* problem;
  };
  const Case cases[] = {
      {"/version", -1, "version: got -1, want 0 to"},
      {"/run_id", "", "run_id: got 0 characters"},
      {"/run_name", "No Label", "run_name: got 'No Label', want a DNS label"},
      {"/state/cursor", -1, "cursor: got -1, want 0 to 59"},
      {"/state/cursor", 60, "cursor: got 60, want 0 to 59"},
      {"/state/cursor", int64_t{1} << 62, "cursor: got 4611686018427387904"},
      {"/state/cursor", 1e300, "cursor is not a whole number"},
      {"/seed", 1e30, "seed is not a whole number"},
      {"/state/reissue/0", Json::array({2, 5.5, 6}), "1 is not a whole"},
      {"/state/data_epoch", -4, "data_epoch: got -4"},
      {"/state/data_epoch", INT64_MAX, "data_epoch: got 9223372036854775807"},
      {"/state/samples", -12, "samples: got -12"},
      {"/state/samples", INT64_MAX, "samples: got 9223372036854775807"},
      {"/state/policy_epoch", INT64_MAX,
       "policy_epoch: got 9223372036854775807"},
      {"/state/policy_epoch", 1, "policy_epoch: got 2, want 2 to 1"},
      {"/state/batch_sizes/0", -32, "batch_sizes: got -32"},
      {"/state/batch_sizes/0", INT64_MAX,
       "batch_sizes: got 9223372036854775807"},
      {"/state/next_sequences", Json::array({5}),
       "got 1 and 2, want one entry per rank"},
      {"/state/next_sequences/1", -1, "next_sequences: got -1"},
      {"/state/next_sequences/1", INT64_MAX, "next_sequences: got 92"},
      {"/state/next_incarnation", -9, "next_incarnation: got -9"},
      {"/state/next_incarnation", INT64_MAX, "next_incarnation: got 92"},
      {"/state/reissue/0", Json::array({2, 50, 61}), "reissue: got [50, 61)"},
      {"/state/reissue/0", Json::array({2, 60, 50}), "reissue: got [60, 50)"},
      {"/state/reissue/0", Json::array({-1, 5, 6}), "of epoch -1"},
      {"/state/reissue/0", Json::array({4, 5, 6}), "of epoch 4"},
      {"/state/reissue/0", Json::array({3, 10, 20}), "each once"},
      {"/state/reissue/1", Json::array({3, 8, 25}), "ranges below 24"},
      {"/state/policy_history/1/samples", -1, "policy_history.samples: got -1"},
      {"/state/policy_history/1/version", -1, "policy_history.version: got -1"},
      {"/state/policy_history/1/policy_epoch", 1,
       "policy_epoch: got 1, want 2"},
      {"/statistics/0/batches_tracked/0", -1, "batches_tracked: got -1"},
      {"/statistics/0/kind", "batch", "statistics/batch/bn/mean is missing"},
      {"/statistics/1/collected", -1, "statistics.collected: got -1"},
      {"/model/plan/train_samples", 0, "plan.train_samples: got 0"},
      {"/model/plan/train_samples", INT64_MAX, "plan.train_samples: got 92"},
      {"/model/plan/test_samples", -1, "plan.test_samples: got -1"},
      {"/model/plan/loss_reference", 0, "plan.loss_reference: got 0"},
      {"/model/plan/loss_reference", Json(), "type must be number"},
      {"/model/partitions/0/slices/0", Json::array({0, 0, INT64_MAX}),
       "do not match"},
      {"/model/partitions/0/slices",
       Json::array(
           {Json::array({0, 0, INT64_MAX}), Json::array({0, 0, INT64_MAX})}),
       "more than 2^63 elements"},
      {"/model/batch_norms/0/channels", int64_t{1} << 62, "wrong type"},
      {"/model/plan/own_data", true, "plan.train_samples: got 60, want 0 to 0"},
      {"/model/plan/own_data", "yes", "type must be boolean"},
      {"/model/plan/rates_by_workers", 2, "type must be boolean"},
      {"/model/plan/optimizer", Json::array({1}), "type must be object"},
      {"/model/parameters/0/rate_group", -1, "got rate group -1"},
      {"/model/parameters/0/rate_group", 1024, "got rate group 1024"},
      {"/front_end_state", "@@@@", "its front_end_state is not base64 of at"},
      {"/front_end_state", "QQ=", "its front_end_state is not base64 of at"},
      {"/front_end_state", std::string(87388, 'A'), "of at most 65536 bytes"},
      {"/front_end_state", 7, "type must be string"},
      {"/tensors_bytes", INT64_MAX, "want 9223372036854775807"},
      {"/tensors_bytes", -1, "want at most -1"},
      {"/tensors_xxh3", "zz", "stoull"},
  };
  for (const Case& c : cases) {
    Rewrite(
        [&c](Json& body) { body[Json::json_pointer(c.pointer)] = c.value; });
    EXPECT_EQ(Loaded(), kOlder) << c.pointer << " = " << c.value;
    ASSERT_EQ(problems_.size(), 1u) << c.pointer << " = " << c.value;
    EXPECT_THAT(problems_[0], HasSubstr(c.problem));
    EXPECT_THAT(problems_[0], HasSubstr("checkpoint-000000000007"));
    WriteText(Newest("manifest.json"), good);
  }
  EXPECT_EQ(Loaded(), kNewer);
}

// Memory is not allocated for data that the manifest claims but the tensor file
// lacks.
TEST_F(DamagedCheckpointTest, AParameterOfATerabyteThatIsNotThere) {
  Rewrite([](Json& body) {
    Json& model = body["model"];
    model["parameters"].push_back({{"name", "huge"},
                                   {"shape", Json::array({int64_t{1} << 38})},
                                   {"trainable", true},
                                   {"decay_exempt", false},
                                   {"rate_multiplier", 1},
                                   {"decay_multiplier", 1},
                                   {"rate_group", 0}});
    model["partitions"].push_back(
        {{"slices", Json::array({Json::array({4, 0, int64_t{1} << 38})})},
         {"trainable", true}});
  });
  EXPECT_EQ(Loaded(), kOlder);
  EXPECT_THAT(problems_.at(0), HasSubstr("are missing"));
}

// It would take the place of one that can be read.
TEST_F(DamagedCheckpointTest, AStateThatCouldNotBeReadBackIsNotWritten) {
  RunState state = ExampleState(8);
  auto snapshot = std::make_shared<ModelSnapshot>(*state.snapshot);
  StatisticsSets sets = *snapshot->statistics;
  sets[0].layers[0].variance[0] = -1;
  snapshot->statistics = std::make_shared<const StatisticsSets>(sets);
  state.snapshot = snapshot;
  const absl::Status written = WriteCheckpoint(RealFileSystem(), dir_.path(), 1,
                                               ExampleIdentity(), state);
  EXPECT_EQ(written.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(written.message()),
              HasSubstr("statistics/sync/bn/variance: got -1, want finite"));
  // Nor would its export.
  sets[0].layers[0].variance[0] = 1e40;
  snapshot->statistics = std::make_shared<const StatisticsSets>(sets);
  EXPECT_EQ(WriteCheckpoint(RealFileSystem(), dir_.path(), 1, ExampleIdentity(),
                            state)
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Loaded(), kNewer);
  EXPECT_THAT(problems_, IsEmpty());
}

}  // namespace
}  // namespace cohort
