#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/security/tls_files.h"
#include "common/security/tokens.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

class CertsVerbsTest : public testing::Test {
 protected:
  CtlResult Certs(const std::string& arguments) {
    return ctl_.RunPlain(absl::StrCat("certs ", arguments));
  }
  // With the folder of the authority.
  CtlResult InDir(const std::string& arguments) {
    return Certs(absl::StrCat(arguments, " --dir=", dir_.File("pki")));
  }
  CtlResult Show(const std::string& file, const std::string& flags = "") {
    return Certs(absl::StrCat("show ", flags, dir_.File("pki/" + file)));
  }
  CtlResult MakeToken(const std::string& name) {
    return Certs(
        absl::StrCat("token --name=", name, " --tokens=", dir_.File("tokens")));
  }

  const TempDir dir_;
  CtlHarness ctl_;
};

TEST_F(CertsVerbsTest, InitMakesUsableFilesForEveryRole) {
  const CtlResult init = InDir("init --run=demo --json");
  ASSERT_EQ(init.code, 0) << init.err;
  EXPECT_THAT(init.err, HasSubstr("--tls_cert="));
  int found = 0;
  for (absl::string_view line :
       absl::StrSplit(init.out, '\n', absl::SkipEmpty())) {
    const auto made = nlohmann::json::parse(std::string(line));
    const TlsContent content = OkValue(ReadTlsFiles(
        {.cert = made["cert"], .key = made["key"], .ca = made["ca"]},
        absl::Now()));
    EXPECT_EQ(content.identity->Uri(), made["identity"]);
    ++found;
  }
  EXPECT_EQ(found, 4);
  EXPECT_THAT(InDir("init --run=demo"), PrintsError(3, "has an authority"));
}

TEST_F(CertsVerbsTest, IssueAddsIdentitiesAndShowPrintsThem) {
  ASSERT_EQ(InDir("init --run=demo --domain=a.org").code, 0);
  ASSERT_EQ(InDir("issue --run=demo worker/0 worker/1").code, 0);
  const CtlResult show = Show("worker-1/tls.crt");
  EXPECT_THAT(show.out, HasSubstr("spiffe://a.org/cohort/demo/worker/1"));
  EXPECT_THAT(show.out, HasSubstr(", ends in 364 days\n"));
  EXPECT_THAT(show.out, HasSubstr("CN = Cohort authority a.org "));
  EXPECT_THAT(show.out, testing::ContainsRegex(
                            "SHA-256   ([0-9a-f][0-9a-f]:)+[0-9a-f]+\n"));
  // A key among the files, as a pattern names it.
  const CtlResult both =
      Show("worker-1/tls.key", dir_.File("pki/worker-1/tls.crt "));
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("tls.key\n  private key; keep it secret\n"));
  EXPECT_THAT(both.out, HasSubstr("/worker/1"));
  const CtlResult json = Show("worker-1/tls.crt", "--json ");
  EXPECT_EQ(nlohmann::json::parse(json.out)["uris"][0],
            "spiffe://a.org/cohort/demo/worker/1");
}

TEST_F(CertsVerbsTest, FilesOfAnotherRunAreReplacedOnRequestOnly) {
  ASSERT_EQ(InDir("init --run=demo").code, 0);
  // The first of the two is free; it is not written either.
  const CtlResult other = InDir("issue --run=other worker/0 server/0");
  EXPECT_THAT(other,
              PrintsError(3, "spiffe://cohort.local/cohort/demo/server"));
  EXPECT_THAT(other.err, HasSubstr("than other\nUse another --dir"));
  EXPECT_EQ(Show("worker-0/tls.crt").code, 3);
  EXPECT_EQ(InDir("issue --run=demo server/0").code, 0);
  EXPECT_EQ(InDir("issue --run=other --replace server/0").code, 0);
  EXPECT_THAT(Show("server-0/tls.crt").out,
              HasSubstr("/cohort/other/server/0"));
}

TEST_F(CertsVerbsTest, RunRefusesAFolderOfAnotherRun) {
  ASSERT_EQ(InDir("init --run=demo").code, 0);
  // Any file will do for a program that is not started.
  for (const char* name : {"cohort-server", "cohort-worker"}) {
    std::ofstream(dir_.File(name)) << "#!/bin/false\n";
    chmod(dir_.File(name).c_str(), 0700);
  }
  const CtlResult run = ctl_.RunPlain(absl::StrCat(
      "run --programs=", dir_.path(), " --tls=", dir_.File("pki")));
  EXPECT_THAT(run, PrintsError(3, "/cohort/demo/server/0"));
  EXPECT_THAT(run.err, HasSubstr("--run_name of that run"));
}

TEST_F(CertsVerbsTest, WrongWordsAreNamed) {
  EXPECT_THAT(InDir("init").err, HasSubstr("--run: want"));
  EXPECT_THAT(InDir("init --run=Demo").err, HasSubstr("--run"));
  EXPECT_THAT(InDir("issue --run=demo worker/0").err, HasSubstr("certs init"));
  ASSERT_EQ(InDir("init --run=demo").code, 0);
  EXPECT_THAT(InDir("issue --run=demo root").err, HasSubstr("got 'root'"));
  EXPECT_THAT(InDir("issue --run=demo --days=x viewer").err,
              HasSubstr("--days: got 'x'"));
  EXPECT_EQ(Certs("issue --run=demo").code, 2);
  EXPECT_EQ(Certs("show").code, 2);
  EXPECT_EQ(Certs("show /missing").code, 3);
}

TEST_F(CertsVerbsTest, TokensAreShownOnceAndStoredAsHashes) {
  const CtlResult ana = MakeToken("ana");
  const CtlResult ben = MakeToken("ben");
  ASSERT_EQ(ana.code, 0) << ana.err;
  ASSERT_EQ(ben.code, 0) << ben.err;
  const auto loaded = OkValue(Tokens::Load(dir_.File("tokens")));
  EXPECT_EQ(loaded->NameOf(absl::StripSuffix(ana.out, "\n")), "ana");
  EXPECT_EQ(loaded->NameOf(absl::StripSuffix(ben.out, "\n")), "ben");
  EXPECT_EQ(Certs("token").code, 3);
  EXPECT_THAT(MakeToken("ana"), PrintsError(3, "of the name ana"));
}

TEST_F(CertsVerbsTest, ATokenWithoutEncryptionIsRefused) {
  std::ofstream(dir_.File("token")) << "secret\n";
  EXPECT_THAT(
      ctl_.Run(absl::StrCat("status --token_file=", dir_.File("token"))),
      PrintsError(3, "want --tls_ca too"));
}

TEST_F(CertsVerbsTest, RunGivesEachProcessItsOwn) {
  EXPECT_THAT(ctl_.RunPlain("run --tls_cert=x"),
              PrintsError(2, "made by --tls"));
}

}  // namespace
}  // namespace cohort
