#include "server/ctl/study/run_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;

constexpr char kHeader[] =
    "version,epoch,samples,seconds,train_loss,train_accuracy,learning_rate,"
    "samples_per_second,test_loss,test_accuracy,workers,policy,bn_statistics,"
    "test_top5_accuracy,test_miou\n";

// Two epochs, sync and after statistics.
std::string History() {
  return std::string(kHeader) +
         "5,1,50,1.5,0.7,0.6,0.1,90,,,2,\"sync, global\",,,\n"
         "10,1,100,2.0,,,0.1,,0.5,0.700000,2,\"sync, global\",sync,,\n"
         "10,1,100,2.0,,,0.1,,0.5,0.750000,2,\"sync, global\",batch,,\n"
         "20,2,200,4.0,,,0.1,,0.4,0.850000,2,\"sync, global\",sync,,\n"
         "20,2,200,4.5,,,0.1,,0.4,0.880000,2,\"sync, global\",after,,\n"
         "20,2,200,5.0,,,0.1,,0.4,0.900000,2,\"sync, global\",batch,,\n";
}

TEST(RunResultTest, TakesTheLastValueOfEachKind) {
  const auto result = OkValue(ParseRunResult({"sync", "after"}, History()));
  EXPECT_EQ(result.measure, "accuracy");
  EXPECT_DOUBLE_EQ(result.percent.at("sync"), 85);
  EXPECT_DOUBLE_EQ(result.percent.at("after"), 88);
  EXPECT_NEAR(result.Gap("sync"), 5, 1e-9);
  EXPECT_NEAR(result.Gap("after"), 2, 1e-9);
  EXPECT_DOUBLE_EQ(result.seconds, 5.0);
}

TEST(RunResultTest, LabelsOfPixelsAreJudgedByMiou) {
  const std::string history =
      std::string(kHeader) +
      "10,1,100,2.0,,,0.1,,0.5,0.900000,2,p,sync,,0.400000\n"
      "10,1,100,2.0,,,0.1,,0.5,0.910000,2,p,batch,,0.450000\n";
  const auto result = OkValue(ParseRunResult({"sync"}, history));
  EXPECT_EQ(result.measure, "mIoU");
  EXPECT_DOUBLE_EQ(result.percent.at("sync"), 40);
}

TEST(RunResultTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(ParseRunResult({"chief"}, History()),
              IsError(kDataLoss, "chief statistics"));
  EXPECT_THAT(ParseRunResult({"sync"}, "version,epoch\n").status().message(),
              HasSubstr("no column seconds"));
  EXPECT_THAT(ParseRunResult({"sync"}, std::string(kHeader) + "1,2\n"),
              IsError(kDataLoss, "line 2: got 2 fields"));
  for (const auto& status : {ParseRunResult({"chief"}, History()).status(),
                             ParseRunResult({"sync"}, "").status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status));
  }
}

}  // namespace
}  // namespace cohort
