// Every operation of a checkpoint's write fails once, in every way that a
// process or a machine can die. The state must survive.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "server/checkpoint/checkpoint.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

// The checkpoints before the crash, and the one written when it happens.
struct CrashCase {
  const char* name = "";
  std::vector<int64_t> before;
  int64_t version = 0;
  int32_t keep = 1;

  friend void PrintTo(const CrashCase& c, std::ostream* out) { *out << c.name; }
};

// How the process or machine dies.
struct Death {
  // The fatal operation still takes effect.
  bool takes_effect = false;
  // Data that was not synced is lost, as in a power cut.
  bool power_cut = false;
};

void WriteReal(const TempDir& dir, int64_t version, int32_t keep) {
  ExpectOk(WriteCheckpoint(RealFileSystem(), dir.path(), keep,
                           ExampleIdentity(), ExampleState(version)));
}

// The newest state in `dir`, compared with the expected state of its version.
int64_t LoadIntact(const TempDir& dir) {
  std::vector<std::string> problems;
  const int64_t version = LoadedVersion(dir.path(), problems);
  EXPECT_TRUE(problems.empty()) << problems.front();
  return version;
}

class CheckpointCrashTest : public testing::TestWithParam<CrashCase> {
 protected:
  // Number of operations that an undisturbed write takes.
  int32_t Operations() {
    const TempDir dir;
    Prepare(dir);
    FaultyFileSystem files;
    EXPECT_TRUE(Write(files, dir).ok());
    return files.operations();
  }

  void Prepare(const TempDir& dir) {
    for (int64_t version : GetParam().before) {
      WriteReal(dir, version, GetParam().keep);
    }
  }

  absl::Status Write(FileSystem& files, const TempDir& dir) {
    return WriteCheckpoint(files, dir.path(), GetParam().keep,
                           ExampleIdentity(), ExampleState(GetParam().version));
  }

  void DieAt(int32_t operation, const Death& death) {
    const TempDir dir;
    Prepare(dir);
    const int64_t old_version = LoadIntact(dir);
    FaultyFileSystem files({.at = operation,
                            .takes_effect = death.takes_effect,
                            .dead_after = true});
    EXPECT_FALSE(Write(files, dir).ok());
    if (death.power_cut) files.LoseUnsynced();

    const int64_t version = LoadIntact(dir);
    EXPECT_TRUE(version == old_version || version == GetParam().version)
        << "loaded " << version;
    // The next process continues.
    WriteReal(dir, GetParam().version + 1, GetParam().keep);
    EXPECT_EQ(LoadIntact(dir), GetParam().version + 1);
    const auto names = OkValue(RealFileSystem().List(dir.path()));
    EXPECT_EQ(names.size(), static_cast<size_t>(GetParam().keep))
        << "something was left behind: " << names.front();
  }
};

TEST_P(CheckpointCrashTest, TheStateSurvivesADeathAtAnyOperation) {
  const int32_t operations = Operations();
  ASSERT_GE(operations, 6);
  for (int32_t operation = 1; operation <= operations; ++operation) {
    for (bool takes_effect : {false, true}) {
      for (bool power_cut : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "operation " << operation << " of " << operations
                     << (takes_effect ? ", takes effect" : "")
                     << (power_cut ? ", power cut" : ""));
        DieAt(operation,
              {.takes_effect = takes_effect, .power_cut = power_cut});
      }
    }
  }
}

// Success means that no later crash can lose it.
TEST_P(CheckpointCrashTest, WhatWasReportedWrittenSurvivesAPowerCut) {
  const TempDir dir;
  Prepare(dir);
  FaultyFileSystem files;
  ASSERT_TRUE(Write(files, dir).ok());
  files.LoseUnsynced();
  EXPECT_EQ(LoadIntact(dir), GetParam().version);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CheckpointCrashTest,
    testing::Values(
        CrashCase{.name = "NewerVersion", .before = {1}, .version = 2},
        CrashCase{.name = "SameVersionAgain", .before = {1}, .version = 1},
        CrashCase{
            .name = "SeveralKept", .before = {1, 2}, .version = 3, .keep = 2}),
    [](const auto& info) { return std::string(info.param.name); });

// If the rename into place fails, the state after a crash is unknown. The
// writer must stop on exactly these errors.
TEST(IndeterminateTest, IsWhatFailsFromTheRenameToTheSync) {
  // Directory, two files, sync, rename, sync of the parent.
  const std::vector<bool> wanted = {false, false, false, false, true, true};
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TempDir dir;
    FaultyFileSystem files({.at = static_cast<int32_t>(i) + 1});
    const absl::Status status = WriteCheckpoint(
        files, dir.path(), 1, ExampleIdentity(), ExampleState(1));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(IsIndeterminate(status), wanted[i]) << "operation " << i + 1;
  }
}

}  // namespace
}  // namespace cohort
