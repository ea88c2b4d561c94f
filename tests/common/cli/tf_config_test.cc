#include "common/cli/tf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// The format of Kubeflow, with a chief and two workers.
std::string Config(const std::string& task) {
  return absl::StrCat(
      R"({"cluster":{"chief":["run-chief-0.ns.svc:2222"],)"
      R"("ps":["run-ps-0.ns.svc:2222"],)"
      R"("worker":["run-worker-0.ns.svc:2222","run-worker-1.ns.svc:2222"]},)"
      R"("environment":"cloud","task":)",
      task, "}");
}

std::string Refusal(const std::string& text, TaskRole role) {
  const auto flags = FlagsFromTfConfig(text, role);
  EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(flags.status().message());
}

TEST(TfConfigTest, TheServerListensOnItsPortForChiefAndWorkers) {
  const auto flags = FlagsFromTfConfig(Config(R"({"type":"ps","index":0})"),
                                       TaskRole::kServer);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(*flags, ElementsAre(Pair("listen", "0.0.0.0:2222"),
                                  Pair("workers", "3")));
}

TEST(TfConfigTest, TheChiefIsRankZeroAndWorkersFollow) {
  const auto chief = FlagsFromTfConfig(Config(R"({"type":"chief","index":0})"),
                                       TaskRole::kWorker);
  ASSERT_TRUE(chief.ok()) << chief.status();
  EXPECT_THAT(*chief, ElementsAre(Pair("rank", "0"),
                                  Pair("server", "run-ps-0.ns.svc:2222")));
  const auto worker = FlagsFromTfConfig(
      Config(R"({"type":"worker","index":"1"})"), TaskRole::kWorker);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->at("rank"), "2");
}

TEST(TfConfigTest, WithoutAChiefTheFirstWorkerIsRankZero) {
  const auto flags = FlagsFromTfConfig(
      R"({"cluster":{"ps":["a:1"],"worker":["b:1"]},
          "task":{"type":"worker","index":0}})",
      TaskRole::kWorker);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->at("rank"), "0");
}

TEST(TfConfigTest, TheTaskOfAnotherProgramIsRefused) {
  EXPECT_THAT(
      Refusal(Config(R"({"type":"worker","index":0})"), TaskRole::kServer),
      HasSubstr("type worker, want ps"));
  for (const char* type : {"ps", "evaluator"}) {
    EXPECT_THAT(
        Refusal(Config(absl::StrCat(R"({"type":")", type, R"("})")),
                TaskRole::kWorker),
        HasSubstr(absl::StrCat("type ", type, ", want chief or worker")));
  }
}

TEST(TfConfigTest, AnIndexBeyondTheClusterIsRefused) {
  for (const char* index : {"2", "-1"}) {
    EXPECT_THAT(Refusal(Config(absl::StrCat(R"({"type":"worker","index":)",
                                            index, "}")),
                        TaskRole::kWorker),
                HasSubstr(absl::StrCat("task.index ", index,
                                       ", but the cluster has 2")));
  }
}

TEST(TfConfigTest, SeveralServersOrNoneAreRefused) {
  for (const char* servers : {R"("ps":["a:1","b:1"],)", ""}) {
    EXPECT_THAT(Refusal(absl::StrCat(R"({"cluster":{)", servers,
                                     R"("worker":["c:1"]},)",
                                     R"("task":{"type":"worker","index":0}})"),
                        TaskRole::kWorker),
                HasSubstr("in cluster.ps, want 1"));
  }
}

// A text of this kind overflowed the stack when an error printed it.
TEST(TfConfigTest, DeepNestingIsRefused) {
  const std::string text =
      absl::StrCat(R"({"cluster":{"ps":{"a":)", std::string(100000, '['),
                   std::string(100000, ']'), R"(}},"task":{"type":"ps"}})");
  EXPECT_THAT(Refusal(text, TaskRole::kServer), HasSubstr("nests deeper"));
}

TEST(TfConfigTest, WhatHasAnotherShapeIsRefused) {
  for (const char* text :
       {"", "{", "[]", R"({"cluster":{}})", R"({"cluster":[],"task":{}})",
        R"({"cluster":{"ps":"a:1"},"task":{"type":"ps"}})",
        R"({"cluster":{"ps":[1]},"task":{"type":"ps"}})",
        R"({"cluster":{"ps":["a:1"]},"task":{}})",
        R"({"cluster":{"ps":["a:1"]},"task":{"type":"ps","index":"x"}})",
        R"({"cluster":{"ps":["a"]},"task":{"type":"ps"}})"}) {
    EXPECT_THAT(Refusal(text, TaskRole::kServer),
                testing::AllOf(testing::StartsWith("TF_CONFIG: "),
                               testing::HasSubstr("got ")))
        << text;
  }
}

}  // namespace
}  // namespace cohort
