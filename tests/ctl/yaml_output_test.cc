#include "server/ctl/yaml_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/ctl/ctl_harness.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(YamlOutputTest, WritesEachLineAsADocument) {
  std::ostringstream out;
  YamlOutput yaml(out);
  yaml << R"({"a":1,"b":null,"c":{"d":"yes","e":[]},)"
       << R"("f":[1,{"g":2,"h":{"i":3}},[4,5]]})" << '\n'
       << R"({"x":{}})" << std::endl;
  EXPECT_EQ(out.str(), R"("a": 1
"b": null
"c":
  "d": "yes"
  "e": []
"f":
  - 1
  - "g": 2
    "h":
      "i": 3
  - - 4
    - 5
---
"x": {}
)");
}

TEST(YamlOutputTest, EveryVerbWithJsonHasIt) {
  CtlHarness ctl;
  const CtlResult status = ctl.Run("status -o yaml");
  EXPECT_EQ(status.code, 0);
  EXPECT_THAT(status.out, HasSubstr("\"version\": 150\n"));
  EXPECT_THAT(status.out, HasSubstr("\n  - \"rank\": 0\n"));
  EXPECT_EQ(ctl.Run("status -o json").out, ctl.Run("status --json").out);
  EXPECT_EQ(ctl.Run("status --output=table").out, ctl.Run("status").out);
  const CtlResult wrong = ctl.Run("status -o xml");
  EXPECT_EQ(wrong.code, 3);
  EXPECT_THAT(wrong.err, HasSubstr("want one of table, json, yaml"));
}

}  // namespace
}  // namespace cohort
