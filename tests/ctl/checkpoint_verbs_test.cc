#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/checkpoint/example_state.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFirst[] = "checkpoint-000000000007";
constexpr char kSecond[] = "checkpoint-000000001200";

// A server's folder with two checkpoints, as the server writes them. No server
// runs.
class CheckpointVerbsTest : public testing::Test {
 protected:
  CheckpointVerbsTest() {
    ctl_.server.Shutdown();
    Write(7);
    Write(1200);
    WriteText(dir_.File("lock"), "");
  }

  void Write(int64_t version) {
    ExpectOk(WriteCheckpoint(RealFileSystem(), dir_.path(), /*keep=*/9,
                             ExampleIdentity(), ExampleState(version)));
  }

  CtlResult Run(const std::string& verb) {
    return ctl_.RunPlain(absl::StrCat(verb, " --dir=", dir_.path()));
  }

  nlohmann::json Json(const std::string& verb) {
    return nlohmann::json::parse(Run(verb + " --json").out);
  }

  std::string Tensors(const std::string& name) {
    return dir_.File(name + "/state.safetensors");
  }

  const TempDir dir_;
  CtlHarness ctl_;
};

TEST_F(CheckpointVerbsTest, ListTellsVersionAgeSizeAndWhetherComplete) {
  fs::last_write_time(dir_.File(kFirst), fs::file_time_type::clock::now() -
                                             std::chrono::minutes(125));
  const CtlResult list = Run("checkpoint list");
  EXPECT_EQ(list.code, 0);
  EXPECT_EQ(list.err, "");
  EXPECT_THAT(
      list.out,
      StartsWith("checkpoint               step  age        size     complete\n"
                 "checkpoint-000000000007  7     2 h 5 min  "));
  const nlohmann::json json = Json("checkpoint list");
  EXPECT_EQ(json["dir"], dir_.path());
  ASSERT_EQ(json["checkpoints"].size(), 2u);
  const nlohmann::json& first = json["checkpoints"][0];
  EXPECT_EQ(first["name"], kFirst);
  EXPECT_EQ(first["version"], 7);
  EXPECT_GE(first["age_ms"], 125 * 60 * 1000);
  EXPECT_EQ(first["bytes"],
            fs::file_size(Tensors(kFirst)) +
                fs::file_size(dir_.File(std::string(kFirst) + "/manifest")));
  EXPECT_EQ(first["complete"], true);
  EXPECT_EQ(first["problem"], nullptr);
  EXPECT_EQ(json["checkpoints"][1]["version"], 1200);
}

// One copy was cut short, and so was one write.
TEST_F(CheckpointVerbsTest, ListNamesWhatIsIncomplete) {
  const auto bytes = fs::file_size(Tensors(kFirst));
  fs::resize_file(Tensors(kFirst), 100);
  fs::remove(Tensors(kSecond));
  fs::create_directory(dir_.File(".tmp-checkpoint-000000001300"));
  const CtlResult list = Run("checkpoint list");
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.err, StartsWith(absl::StrCat(
                            kFirst, ": ", Tensors(kFirst),
                            ": got 100 bytes, want ", bytes, "\n", kSecond,
                            ": ", Tensors(kSecond), ": No such file")));
  EXPECT_THAT(list.err, HasSubstr("\n.tmp-checkpoint-000000001300: "));
  const nlohmann::json told = Json("checkpoint list");
  for (const nlohmann::json& one : told["checkpoints"]) {
    EXPECT_EQ(one["complete"], false);
  }
}

TEST_F(CheckpointVerbsTest, VerifyOfWholeOnesIsExitCode0) {
  const CtlResult verified = Run("checkpoint verify");
  EXPECT_EQ(verified.code, 0);
  EXPECT_EQ(verified.err, "");
  EXPECT_THAT(verified.out,
              StartsWith("checkpoint               step  size     result\n"
                         "checkpoint-000000000007  7     "));
  const nlohmann::json json = Json("checkpoint verify");
  EXPECT_EQ(json["ok"], true);
  ASSERT_EQ(json["checkpoints"].size(), 2u);
  EXPECT_EQ(json["checkpoints"][1]["result"], "ok");
}

TEST_F(CheckpointVerbsTest, VerifyNamesTheDamagedFileAndIsExitCode7) {
  std::string tensors = ReadText(Tensors(kSecond));
  tensors.back() = static_cast<char>(tensors.back() ^ 1);
  WriteText(Tensors(kSecond), tensors);
  // The length is right, so only reading all of it shows the damage.
  EXPECT_EQ(Json("checkpoint list")["checkpoints"][1]["complete"], true);
  const CtlResult verified = Run("checkpoint verify");
  EXPECT_EQ(verified.code, 7);
  EXPECT_THAT(verified.err,
              StartsWith(absl::StrCat(kSecond, ": ", Tensors(kSecond),
                                      ": checksum: got ")));
  EXPECT_THAT(verified.err, HasSubstr(", want "));
  EXPECT_THAT(verified.err, HasSubstr("continues from step 7"));
  const nlohmann::json json = Json("checkpoint verify");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["checkpoints"][0]["result"], "ok");
  EXPECT_EQ(json["checkpoints"][1]["result"], "damaged");

  WriteText(dir_.File(std::string(kFirst) + "/manifest"), "{}");
  EXPECT_THAT(Run("checkpoint verify").err, HasSubstr("exit code 7"));
}

TEST_F(CheckpointVerbsTest, VerifyNamesWhatAnEarlierReleaseWrote) {
  const std::string path = dir_.File(kSecond) + "/manifest";
  fs::rename(path, path + ".json");
  EXPECT_THAT(Run("checkpoint verify").err,
              HasSubstr(path + ".json: got format below "));
  EXPECT_EQ(Json("checkpoint verify")["checkpoints"][1]["result"],
            "other_release");
}

// `verify` reports what a server would find.
TEST_F(CheckpointVerbsTest, VerifyAgreesWithTheServer) {
  for (const char* file : {"/manifest", "/state.safetensors"}) {
    const std::string path = dir_.File(kSecond) + file;
    const std::string good = ReadText(path);
    for (size_t i = 0; i < good.size(); i += 97) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 4);
      WriteText(path, bad);
      EXPECT_EQ(Run("checkpoint verify --checkpoint=1200").code, 7)
          << file << " byte " << i;
    }
    WriteText(path, good);
  }
  std::vector<std::string> problems;
  ExpectOk(LoadNewestCheckpoint(RealFileSystem(), dir_.path(), problems));
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(Run("checkpoint verify --checkpoint=1200").code, 0);
}

TEST_F(CheckpointVerbsTest, VerifyTakesOneVersionAndKnowsTheOthers) {
  fs::remove(Tensors(kFirst));
  EXPECT_EQ(Run("checkpoint verify").code, 7);
  const CtlResult one = Run("checkpoint verify --checkpoint=1200");
  EXPECT_EQ(one.code, 0) << one.err;
  const CtlResult none = Run("checkpoint verify --checkpoint=8");
  EXPECT_EQ(none.code, 3);
  EXPECT_EQ(none.err, "cohortctl: --checkpoint: got 8, want one of 7, 1200\n");
  EXPECT_THAT(Run("checkpoint verify --checkpoint=newest"),
              PrintsError(3, "--checkpoint: got 'newest'"));
}

TEST_F(CheckpointVerbsTest, FoldersThatAreNoServersAreRefused) {
  const TempDir other;
  struct Case {
    std::string arguments;
    int code;
    std::string err;
  };
  const Case cases[] = {
      {"", 2, "got no --dir"},
      {" --dir=/no/such/folder", 3, "'/no/such/folder', which is not there"},
      {" --dir=" + other.path(), 3, other.path() + "', which holds no"},
      {" --dir=" + dir_.File("lock"), 3, dir_.File("lock") + ": cannot list"},
      {" --dir=" + dir_.File(kFirst) + "/", 3, "\nTry --dir=" + dir_.path()}};
  for (const Case& c : cases) {
    for (const char* verb : {"checkpoint list", "checkpoint verify"}) {
      EXPECT_THAT(ctl_.RunPlain(verb + c.arguments),
                  PrintsError(c.code, c.err));
    }
  }
}

// The folder of a server that has just started.
TEST_F(CheckpointVerbsTest, AFolderWithoutOneYetIsListedAndNotVerified) {
  const TempDir begun;
  WriteText(begun.File("lock"), "");
  const CtlResult list = ctl_.RunPlain("checkpoint list --dir=" + begun.path());
  EXPECT_EQ(list.code, 0);
  EXPECT_EQ(list.out, "");
  EXPECT_EQ(list.err, begun.path() + ": no checkpoint was written yet\n");
  EXPECT_THAT(ctl_.RunPlain("checkpoint verify --dir=" + begun.path()),
              PrintsError(3, "there is no finished checkpoint"));
}

}  // namespace
}  // namespace cohort
