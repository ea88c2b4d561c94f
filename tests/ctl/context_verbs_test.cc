#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/ctl/contexts.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/fakes/temp_dir.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

class ContextVerbsTest : public testing::Test {
 protected:
  ContextVerbsTest() {
    ctl_.environment = {absl::StrCat("XDG_CONFIG_HOME=", dir_.path())};
  }
  std::string File() const { return dir_.File("cohort/contexts.json"); }

  const TempDir dir_;
  CtlHarness ctl_;
};

TEST_F(ContextVerbsTest, NamedServersAreUsedWithoutAFlag) {
  EXPECT_EQ(ctl_.RunPlain("context set far 127.0.0.1:1").code, 0);
  EXPECT_EQ(
      ctl_.RunPlain(absl::StrCat("context set near ", ctl_.server.address()))
          .code,
      0);
  EXPECT_THAT(ctl_.RunPlain("status --timeout=100ms").err,
              HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(ctl_.RunPlain("status --context=near").code, 0);
  const CtlResult use = ctl_.RunPlain("context use near");
  EXPECT_THAT(use.err, HasSubstr(ctl_.server.address()));
  EXPECT_EQ(ctl_.RunPlain("status").code, 0);
  EXPECT_EQ(ctl_.RunPlain("context list").out,
            absl::StrCat("context  server           encrypted  in use\n"
                         "far      127.0.0.1:1\n"
                         "near     ",
                         ctl_.server.address(), "             yes\n"));
  const auto json =
      nlohmann::json::parse(ctl_.RunPlain("context list --json").out);
  EXPECT_EQ(json["current"], "near");
  EXPECT_EQ(json["contexts"]["far"], "127.0.0.1:1");
}

TEST_F(ContextVerbsTest, KeepsTheFilesOfItsServer) {
  TestAuthority authority;
  const TlsFiles files = authority.Issue("operator");
  const std::string set = absl::StrCat(
      "context set far 127.0.0.1:1 --ops=127.0.0.1:2 --tls_cert=", files.cert,
      " --tls_key=", files.key, " --tls_ca=");
  EXPECT_EQ(ctl_.RunPlain(absl::StrCat(set, files.ca)).code, 0);
  const absl::StatusOr<Contexts> contexts =
      ReadContexts(RealFileSystem(), File());
  ASSERT_TRUE(contexts.ok()) << contexts.status();
  EXPECT_EQ(contexts->servers.at("far"),
            (ServerTarget{
                .server = "127.0.0.1:1", .tls = files, .ops = "127.0.0.1:2"}));
  EXPECT_THAT(ctl_.RunPlain("health --timeout=1s").err,
              HasSubstr("127.0.0.1:2"));
  // They are used.
  ASSERT_EQ(std::remove(files.ca.c_str()), 0);
  const CtlResult status = ctl_.RunPlain("status");
  EXPECT_EQ(status.code, 3);
  EXPECT_THAT(status.err, HasSubstr(absl::StrCat("--tls_ca: ", files.ca,
                                                 " cannot be read")));
}

TEST_F(ContextVerbsTest, FilesThatCannotBeUsedAreRefused) {
  const CtlResult set =
      ctl_.RunPlain("context set far 127.0.0.1:1 --tls_ca=/missing/ca.crt");
  EXPECT_EQ(set.code, 3);
  EXPECT_THAT(set.err, HasSubstr("--tls_ca: /missing/ca.crt cannot be read"));
  EXPECT_EQ(ctl_.RunPlain("status --context=far").code, 2);
}

TEST_F(ContextVerbsTest, HalfACertificateIsRefused) {
  const CtlResult set =
      ctl_.RunPlain("context set far 127.0.0.1:1 --tls_cert=/pki/tls.crt");
  EXPECT_EQ(set.code, 3);
  EXPECT_THAT(set.err, HasSubstr("want --tls_key too"));
}

TEST_F(ContextVerbsTest, FlagsAndVariablesTakePrecedence) {
  ctl_.RunPlain("context set far 127.0.0.1:1");
  EXPECT_EQ(ctl_.Run("status").code, 0);
  ctl_.environment.push_back(
      absl::StrCat("COHORT_SERVER=", ctl_.server.address()));
  EXPECT_EQ(ctl_.RunPlain("status").code, 0);
  EXPECT_EQ(ctl_.RunPlain("status --context=far --timeout=100ms").code, 5);
}

TEST_F(ContextVerbsTest, SaysWhichContextsThereAre) {
  ctl_.RunPlain("context set lab 127.0.0.1:1");
  for (const char* verb : {"status --context=lob", "context use lob"}) {
    const CtlResult result = ctl_.RunPlain(verb);
    EXPECT_EQ(result.code, 2) << verb;
    EXPECT_THAT(result.err,
                HasSubstr("unknown context 'lob', want one of: lab"));
  }
  EXPECT_EQ(ctl_.RunPlain("context set lab").code, 2);
  ctl_.environment = {"USER=x"};
  EXPECT_THAT(ctl_.RunPlain("context list").err, HasSubstr("COHORT_CONFIG"));
}

TEST_F(ContextVerbsTest, ADamagedFileIsNamedAndLocalVerbsStillWork) {
  ctl_.RunPlain("context set lab 127.0.0.1:1");
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(R"({"current": 3})"),
        std::string(R"({"contexts": {"a": {}}})"), std::string(9999, '[')}) {
    std::ofstream(File()) << text;
    const CtlResult status = ctl_.RunPlain("status");
    EXPECT_EQ(status.code, 1) << text;
    EXPECT_THAT(status.err, HasSubstr(absl::StrCat(File(), ": ")));
    EXPECT_EQ(ctl_.RunPlain("completion bash").code, 0);
  }
}

}  // namespace
}  // namespace cohort
