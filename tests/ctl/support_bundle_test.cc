#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/ctl/support/bundle.h"
#include "server/ctl/support/redact.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedactTest, ValuesBehindNamesOfSecretsAreTakenOut) {
  struct Case {
    const char* text;
    const char* redacted;
  };
  const Case cases[] = {
      {"token=abc next", "token=[redacted] next"},
      {"--auth-token=abc --seed=3", "--auth-token=[redacted] --seed=3"},
      {"PASSWORD: abc", "PASSWORD: [redacted]"},
      {"{\"api_key\": \"a b\", \"seed\": 3}",
       "{\"api_key\": \"[redacted]\", \"seed\": 3}"},
      {"Authorization: Bearer abc def", "Authorization: [redacted]"},
      {"at http://me:abc@host/x?token=d&n=1",
       "at http://me:[redacted]@host/x?token=[redacted]&n=1"},
      // Words that only look like a secret.
      {"1200 tokens a second", "1200 tokens a second"},
      {"mail a@b, see http://host:80/", "mail a@b, see http://host:80/"},
      {"learning_rate=0.1\nseed=3\n", "learning_rate=0.1\nseed=3\n"},
      {"token=", "token="},
      {"", ""}};
  for (const Case& c : cases) EXPECT_EQ(Redacted(c.text), c.redacted);
}

TEST(RedactTest, OnlyVariablesOfCohortAreTold) {
  EXPECT_EQ(RedactedVariables({"PATH=/bin", "COHORT_WORKERS=2",
                               "COHORT_API_TOKEN=abc", "MY_COHORT_X=1"}),
            "COHORT_API_TOKEN=[redacted]\nCOHORT_WORKERS=2\n");
}

TEST(EndOfFileTest, BeginsWithAWholeLine) {
  const TempDir dir;
  WriteText(dir.File("log"), "first\nsecond\nthird\n");
  EXPECT_EQ(*EndOfFile(dir.File("log"), 100), "first\nsecond\nthird\n");
  EXPECT_EQ(*EndOfFile(dir.File("log"), 10), "third\n");
  EXPECT_EQ(EndOfFile(dir.File("none"), 10).status().message(),
            dir.File("none") + ": no such file");
  EXPECT_EQ(EndOfFile(dir.path(), 10).status().message(),
            dir.path() + ": is no file");
}

class SupportBundleTest : public testing::Test {
 protected:
  CtlResult Run(const std::string& arguments) {
    return ctl_.Run(
        absl::StrCat("support-bundle --timeout=2s --ops=127.0.0.1:1"
                     " --out=",
                     out_, " ", arguments));
  }

  // Unpacks the bundle, and returns the path of one of its files.
  std::string File(const std::string& name) {
    const std::string to = dir_.File("unpacked");
    fs::create_directory(to);
    EXPECT_EQ(system(absl::StrCat("tar -xzf ", out_, " -C ", to).c_str()), 0);
    return absl::StrCat(to, "/friday/", name);
  }

  nlohmann::json Json(const std::string& name) {
    return nlohmann::json::parse(ReadText(File(name)));
  }

  const TempDir dir_;
  const std::string out_ = dir_.File("friday.tar.gz");
  CtlHarness ctl_;
};

TEST_F(SupportBundleTest, HoldsWhatTheServerTellsAndTheEndsOfLogs) {
  WriteText(dir_.File("server.log"), "begun\npassword=abc\n");
  fs::create_directory(dir_.File("results"));
  WriteText(dir_.File("results/history.csv"), "version,epoch\n");
  WriteText(dir_.File("results/model.safetensors"), "weights");
  const CtlResult result = Run(absl::StrCat(
      dir_.File("server.log"), " --results_dir=", dir_.File("results")));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nlogs/server.log"));
  EXPECT_THAT(result.out, HasSubstr("\nmetrics.txt"));
  EXPECT_THAT(result.out, HasSubstr("missing"));
  EXPECT_EQ(Json("status.json")["run_id"], "3f2a");
  EXPECT_EQ(Json("policy.json")["run"], "3f2a");
  EXPECT_EQ(Json("workers.json")["workers"].size(), 2u);
  EXPECT_EQ(Json("doctor.json")["checks"][0]["check"], "address");
  EXPECT_EQ(ReadText(File("logs/server.log")), "begun\npassword=[redacted]\n");
  EXPECT_EQ(ReadText(File("history.csv")), "version,epoch\n");
  EXPECT_FALSE(fs::exists(File("model.safetensors")));
  const std::string contents = ReadText(File("contents.txt"));
  EXPECT_THAT(contents, HasSubstr("  logs/server.log          end of the "
                                  "log, up to 1 MiB\n"));
  EXPECT_THAT(contents, HasSubstr("\nMissing:\n  metrics.txt  "));
  // No other file is left beside it, and only its owner may read it.
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp-")));
  }
  struct stat info = {};
  ASSERT_EQ(stat(out_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(SupportBundleTest, KeysAndTokensAreNeverPacked) {
  // Cut in two, so that nothing takes this file for one with a key.
  WriteText(dir_.File("tls.key"),
            "-----BEGIN PRIVATE "
            "KEY-----\nMIG\n-----END PRIVATE "
            "KEY-----\n");
  WriteText(dir_.File("token"), std::string(43, 'x') + "\n");
  WriteText(dir_.File("server.log"), "begun\n");
  const CtlResult result =
      Run(absl::StrCat(dir_.File("tls.key"), " ", dir_.File("token"), " ",
                       dir_.File("server.log")));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(File("logs/tls.key")));
  EXPECT_FALSE(fs::exists(File("logs/token")));
  EXPECT_TRUE(fs::exists(File("logs/server.log")));
  EXPECT_THAT(ReadText(File("contents.txt")), HasSubstr("holds a private key"));
}

TEST_F(SupportBundleTest, WithoutAServerTheRestIsThereAndWhyIsTold) {
  ctl_.server.Shutdown();
  const CtlResult result = Run("/no/such.log --json");
  EXPECT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["out"], out_);
  EXPECT_EQ(json["bytes"], fs::file_size(out_));
  std::map<std::string, nlohmann::json> parts;
  for (const nlohmann::json& part : json["parts"]) {
    parts[part["name"].get<std::string>()] = part;
  }
  for (const char* name : {"status.json", "policy.json", "workers.json"}) {
    EXPECT_THAT(parts[name]["problem"].get<std::string>(),
                HasSubstr("cannot be reached"));
  }
  EXPECT_EQ(parts["logs/such.log"]["problem"], "/no/such.log: no such file");
  EXPECT_EQ(parts["doctor.json"]["problem"], nullptr);
  EXPECT_EQ(Json("doctor.json")["ok"], false);
}

TEST_F(SupportBundleTest, AFileThatCannotBeWrittenIsRefused) {
  EXPECT_THAT(
      ctl_.Run("support-bundle --ops=127.0.0.1:1 --out=" + dir_.path()),
      PrintsError(3, absl::StrCat("--out: got '", dir_.path(), "', a folder")));
  EXPECT_THAT(
      ctl_.Run("support-bundle --ops=127.0.0.1:1 --out=/no/such/x.tar.gz"),
      PrintsError(3, "--out: got '/no/such/x.tar.gz'"));
}

TEST_F(SupportBundleTest, InterruptLeavesWhatWasThere) {
  WriteText(out_, "old");
  ctl_.interrupt_at = absl::ZeroDuration();
  EXPECT_THAT(Run(""), PrintsError(1, "interrupted; nothing was written"));
  EXPECT_EQ(ReadText(out_), "old");
}

}  // namespace
}  // namespace cohort
