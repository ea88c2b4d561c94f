#include "server/ctl/study/study_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
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

TEST(StudyFolderTest, ARunIsDoneOnceItIsMarked) {
  const TempDir dir;
  const StudyRun run = ARun({"sync"});
  {
    StudyFolder folder = OpenIn(dir);
    EXPECT_FALSE(*folder.IsDone(run));
    ASSERT_TRUE(folder.Prepare(run).ok());
    EXPECT_FALSE(*folder.IsDone(run));
    EXPECT_THAT(*folder.DoneNames(), IsEmpty());
    ASSERT_TRUE(folder.MarkDone(run).ok());
  }
  // The folder as the next cohortctl opens it.
  const StudyFolder again = OpenIn(dir);
  EXPECT_TRUE(*again.IsDone(run));
  EXPECT_THAT(*again.DoneNames(), ElementsAre(run.Name()));
}

TEST(StudyFolderTest, ARunThatLacksAKindIsNotDone) {
  const TempDir dir;
  StudyFolder folder = OpenIn(dir);
  ASSERT_TRUE(folder.Prepare(ARun({"sync", "chief"})).ok());
  ASSERT_TRUE(folder.MarkDone(ARun({"sync", "chief"})).ok());
  EXPECT_TRUE(*folder.IsDone(ARun({"chief"})));
  EXPECT_FALSE(*folder.IsDone(ARun({"sync", "chief", "after"})));
}

TEST(StudyFolderTest, PreparingARunRemovesWhatItHad) {
  const TempDir dir;
  StudyFolder folder = OpenIn(dir);
  const StudyRun run = ARun({"sync"});
  ASSERT_TRUE(folder.Prepare(run).ok());
  WriteText(folder.RunPath(run) + "/history.csv", "half a run");
  ASSERT_TRUE(folder.MarkDone(run).ok());
  ASSERT_TRUE(folder.Prepare(run).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.RunPath(run)));
  EXPECT_FALSE(*folder.IsDone(run));
}

TEST(StudyFolderTest, OtherFlagsAreRefusedAndNamed) {
  const TempDir dir;
  OpenIn(dir);
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
    const auto folder =
        StudyFolder::Open(RealFileSystem(), dir.File("study"), flags);
    EXPECT_TRUE(absl::IsFailedPrecondition(folder.status()));
    EXPECT_THAT(folder.status().message(), HasSubstr(text));
  }
}

TEST(StudyFolderTest, ADamagedFolderIsRefused) {
  const TempDir dir;
  OpenIn(dir);
  WriteText(dir.File("study/study.json"), "{");
  const auto folder =
      StudyFolder::Open(RealFileSystem(), dir.File("study"), kFlags);
  EXPECT_THAT(folder.status().message(), HasSubstr("study.json is damaged"));
}

TEST(StudyFolderTest, TwoStudiesDoNotWorkInOneFolder) {
  const TempDir dir;
  {
    const StudyFolder first = OpenIn(dir);
    const auto second =
        StudyFolder::Open(RealFileSystem(), dir.File("study"), kFlags);
    EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
    EXPECT_THAT(second.status().message(),
                HasSubstr("another study is at work in "));
  }
  OpenIn(dir);
}

}  // namespace
}  // namespace cohort
