#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/permutation.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// 14 training and 5 test images of 1 x 8 x 8 in three classes; each depends
// only on the sample's number.
class TinyDataset : public Dataset {
 public:
  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return digest_; }
  DatasetTask task() const override { return DatasetTask::kClassification; }
  int64_t classes() const override { return 3; }
  int64_t channels() const override { return 1; }
  int64_t height() const override { return 8; }
  int64_t width() const override { return 8; }
  int64_t train_size() const override { return 14; }
  int64_t test_size() const override { return 5; }

  std::vector<int64_t> TrainClasses() const override {
    std::vector<int64_t> classes;
    for (int64_t i = 0; i < train_size(); ++i) classes.push_back(i % 3);
    return classes;
  }

  void Read(const SampleRequest& request, absl::Span<float> images,
            absl::Span<int64_t> labels) const override {
    size_t at = 0;
    for (size_t n = 0; n < request.indices.size(); ++n) {
      const int64_t index = request.indices[n];
      SplitMix64 random(MixSeed(request.split == DataSplit::kTrain ? 1 : 2,
                                static_cast<uint64_t>(index)));
      for (int64_t i = 0; i < 64; ++i) {
        images[at++] = static_cast<float>(2 * random.Uniform() - 1);
      }
      labels[n] = index % 3;
    }
  }

 private:
  std::string name_ = "tiny";
  std::string digest_ = "0123456789abcdef";
};

}  // namespace cohort
