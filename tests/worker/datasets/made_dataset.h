#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "worker/datasets/dataset.h"

namespace cohort {

// Null, with a failed test, if the data set cannot be created.
inline std::unique_ptr<Dataset> Make(const DatasetOptions& options) {
  auto dataset = MakeDataset(options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

}  // namespace cohort
