#include "server/ctl/study/study_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const StudyFlags kFlags = {.server = {"--epochs=2"},
                           .worker = {"--model=cnn"},
                           .reference_images = 64};

StudyRun ARun(std::vector<std::string> kinds) {
  return {.policy = {.aggregation = "sync", .normalization = "local"},
          .condition = {.order = "shuffled", .workers = 2, .batch_size = 4},
          .seed = 1,
          .kinds = std::move(kinds)};
}

StudyFolder OpenIn(const TempDir& dir) {
  absl::StatusOr<StudyFolder> folder =
      StudyFolder::Open(RealFileSystem(), dir.File("study"), kFlags);
  EXPECT_TRUE(folder.ok()) << folder.status();
  return *std::move(folder);
}

class StudyFolderTest : public testing::Test {
 protected:
  const TempDir dir_;
};

TEST_F(StudyFolderTest, ARunIsDoneOnceItIsMarked) {
  const StudyRun run = ARun({"sync"});
  {
    StudyFolder folder = OpenIn(dir_);
    EXPECT_FALSE(*folder.IsDone(run));
    ASSERT_TRUE(folder.Prepare(run).ok());
    EXPECT_FALSE(*folder.IsDone(run));
    EXPECT_THAT(*folder.DoneNames(), IsEmpty());
    ASSERT_TRUE(folder.MarkDone(run).ok());
  }
  // The folder as the next cohortctl opens it.
  const StudyFolder again = OpenIn(dir_);
  EXPECT_TRUE(*again.IsDone(run));
  EXPECT_THAT(*again.DoneNames(), ElementsAre(run.Name()));
}

TEST_F(StudyFolderTest, ARunThatLacksAKindIsNotDone) {
  StudyFolder folder = OpenIn(dir_);
  ASSERT_TRUE(folder.Prepare(ARun({"sync", "chief"})).ok());
  ASSERT_TRUE(folder.MarkDone(ARun({"sync", "chief"})).ok());
  EXPECT_TRUE(*folder.IsDone(ARun({"chief"})));
  EXPECT_FALSE(*folder.IsDone(ARun({"sync", "chief", "after"})));
}

TEST_F(StudyFolderTest, PreparingARunRemovesWhatItHad) {
  StudyFolder folder = OpenIn(dir_);
  const StudyRun run = ARun({"sync"});
  ASSERT_TRUE(folder.Prepare(run).ok());
  WriteText(folder.RunPath(run) + "/history.csv", "half a run");
  ASSERT_TRUE(folder.MarkDone(run).ok());
  ASSERT_TRUE(folder.Prepare(run).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.RunPath(run)));
  EXPECT_FALSE(*folder.IsDone(run));
}

TEST_F(StudyFolderTest, OtherFlagsAreRefusedAndNamed) {
  OpenIn(dir_);
  for (const auto& [flags, text] :
       std::vector<std::pair<StudyFlags, const char*>>{
           {{.server = {"--epochs=3"},
   .worker = kFlags.worker,
   .reference_images = 64},
            "other server flags: got '--epochs=3', want '--epochs=2'"},
           {{.server = kFlags.server, .reference_images = 64},
            "other worker flags: got '', want '--model=cnn'"},
           {{.server = kFlags.server, .worker = kFlags.worker},
            "other --reference_images: got '0', want '64'"}}) {
    EXPECT_THAT(StudyFolder::Open(RealFileSystem(), dir_.File("study"), flags),
                IsError(kFailedPrecondition, text));
  }
}

TEST_F(StudyFolderTest, ADamagedFolderIsRefused) {
  OpenIn(dir_);
  WriteText(dir_.File("study/study.json"), "{");
  EXPECT_THAT(StudyFolder::Open(RealFileSystem(), dir_.File("study"), kFlags),
              IsError(kFailedPrecondition, "study.json"));
}

TEST_F(StudyFolderTest, TwoStudiesDoNotWorkInOneFolder) {
  {
    const StudyFolder first = OpenIn(dir_);
    EXPECT_THAT(StudyFolder::Open(RealFileSystem(), dir_.File("study"), kFlags),
                IsError(kFailedPrecondition, "is in use"));
  }
  OpenIn(dir_);
}

}  // namespace
}  // namespace cohort
