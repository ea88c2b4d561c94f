#include "server/records/earlier_results.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(EarlierResultsTest, AreMovedAndOthersStay) {
  TempDir dir;
  const std::string results = dir.path();
  for (int number : {1, 2}) {
    Write(results + "/history.csv", "version\n" + std::to_string(number));
    Write(results + "/model.safetensors", "weights");
    Write(results + "/report.html", "page");
    Write(results + "/notes.txt", "mine");
    const auto aside = OkValue(SetEarlierResultsAside(results));
    EXPECT_EQ(aside, results + "/earlier-" + std::to_string(number));
    EXPECT_EQ(Read(aside + "/history.csv"),
              "version\n" + std::to_string(number));
    EXPECT_EQ(Read(aside + "/model.safetensors"), "weights");
    EXPECT_EQ(Read(aside + "/report.html"), "page");
    EXPECT_FALSE(fs::exists(results + "/history.csv"));
    EXPECT_FALSE(fs::exists(results + "/model.safetensors"));
    EXPECT_EQ(Read(results + "/notes.txt"), "mine");
  }
}

TEST(EarlierResultsTest, AStartThatFailedLeftNothingToKeep) {
  TempDir dir;
  const std::string results = dir.path();
  EXPECT_EQ(*SetEarlierResultsAside(results), "");
  Write(results + "/history.csv", "version,epoch\n");
  Write(results + "/policy.csv", "version,text\n0,sync\n");
  EXPECT_EQ(*SetEarlierResultsAside(results), "");
  EXPECT_TRUE(fs::exists(results + "/history.csv"));
  EXPECT_FALSE(fs::exists(results + "/earlier-1"));
  // One that has only the model, as without a row for 50 steps.
  Write(results + "/model.safetensors", "weights");
  EXPECT_EQ(*SetEarlierResultsAside(results), results + "/earlier-1");
}

TEST(EarlierResultsTest, TheNextFreeNumberIsTaken) {
  TempDir dir;
  const std::string results = dir.path();
  Write(results + "/history.csv", "version\n7\n");
  fs::create_directory(results + "/earlier-1");
  const auto aside = OkValue(SetEarlierResultsAside(results));
  EXPECT_EQ(aside, results + "/earlier-2");
  EXPECT_TRUE(fs::is_empty(results + "/earlier-1"));
}

}  // namespace
}  // namespace cohort
