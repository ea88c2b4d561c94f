#include "common/formats/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort {
namespace {

using ::testing::ElementsAre;

TEST(CsvTest, FieldsLoseTheirQuotes) {
  EXPECT_THAT(CsvFields("1,\"a, \"\"b\"\"\",,2"),
              ElementsAre("1", "a, b", "", "2"));
}

}  // namespace
}  // namespace cohort
