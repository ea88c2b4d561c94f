// Initial values from a safetensors file.
#include "worker/models/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/formats/file_system.h"
#include "common/formats/safetensors.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "worker/batch_norm/binding.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Model> MakeSmooth(uint64_t seed) {
  return *MakeModel({.name = "smooth", .classes = 3, .seed = seed});
}

NamedTensor FromTensor(const std::string& name, const at::Tensor& tensor) {
  return {
      .name = name,
      .type = tensor.scalar_type() == at::kLong ? TensorType::kInt64
                                                : TensorType::kFloat32,
      .shape = tensor.sizes().vec(),
      .bytes = ByteRope::Copy(absl::MakeConstSpan(
          static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()))};
}

// All tensors of the model's state dict.
SafetensorsContent StateOf(Model& model) {
  SafetensorsContent content;
  for (const auto& item : model.named_parameters()) {
    content.tensors.push_back(FromTensor(item.key(), item.value()));
  }
  for (const auto& item : model.named_buffers()) {
    content.tensors.push_back(FromTensor(item.key(), item.value()));
  }
  return content;
}

class StateDictTest : public ::testing::Test {
 protected:
  void Write(const SafetensorsContent& content) {
    const auto bytes = OkValue(EncodeSafetensors(content));
    ASSERT_TRUE(RealFileSystem().WriteFile(File(), 0600, bytes).ok());
  }

  absl::Status Load(Model& model) {
    return LoadStateDict(RealFileSystem(), File(), model);
  }

  // The refusal of a state dict with one changed tensor; the model must not
  // change.
  std::string RefusedWith(
      const std::function<void(std::vector<NamedTensor>&)>& change) {
    SafetensorsContent content = StateOf(*MakeSmooth(7));
    change(content.tensors);
    Write(content);
    const auto model = MakeSmooth(1);
    const absl::Status status = Load(*model);
    EXPECT_THAT(status, IsError(kInvalidArgument, File()));
    EXPECT_TRUE(at::equal(model->named_parameters()["conv1.weight"],
                          MakeSmooth(1)->named_parameters()["conv1.weight"]));
    return std::string(status.message());
  }

  std::string File() const { return dir_.File("init.safetensors"); }

  const TempDir dir_;
};

NamedTensor& Find(std::vector<NamedTensor>& tensors, const std::string& name) {
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << name << " is not there";
  return tensors[0];
}

TEST_F(StateDictTest, OverwritesParametersAndMovingStatistics) {
  const auto from = MakeSmooth(7);
  const std::vector<LayerStatistics> statistics(
      3, {.mean = std::vector<double>(16, 0.5),
          .variance = std::vector<double>(16, 2.0),
          .num_batches_tracked = 12});
  std::vector<LayerStatistics> fitting = statistics;
  fitting[0].mean.resize(8);
  fitting[0].variance.resize(8);
  ASSERT_TRUE(BatchNormBinding::Make(*from)->LoadStatistics(fitting).ok());
  Write(StateOf(*from));
  const auto to = MakeSmooth(1);
  ASSERT_TRUE(Load(*to).ok());
  for (const auto& item : from->named_parameters()) {
    EXPECT_TRUE(at::equal(to->named_parameters()[item.key()], item.value()))
        << item.key();
  }
  EXPECT_EQ(BatchNormBinding::Make(*to)->Statistics(), fitting);
}

TEST_F(StateDictTest, CountersMayBeMissing) {
  SafetensorsContent content = StateOf(*MakeSmooth(7));
  std::erase_if(content.tensors, [](const NamedTensor& tensor) {
    return tensor.type == TensorType::kInt64;
  });
  Write(content);
  EXPECT_TRUE(Load(*MakeSmooth(1)).ok());
}

TEST_F(StateDictTest, MissingAndUnknownNamesAreListedTogether) {
  const std::string text = RefusedWith([](std::vector<NamedTensor>& tensors) {
    Find(tensors, "conv1.weight").name = "module.conv1.weight";
    Find(tensors, "bn2.running_mean").name = "module.bn2.running_mean";
  });
  EXPECT_THAT(text, HasSubstr("2 missing (bn2.running_mean; conv1.weight)"));
  EXPECT_THAT(text, HasSubstr("2 unknown (module.conv1.weight; "
                              "module.bn2.running_mean)"));
}

TEST_F(StateDictTest, OtherShapesAreNamedWithBoth) {
  EXPECT_THAT(RefusedWith([](std::vector<NamedTensor>& tensors) {
                Find(tensors, "fc.weight") =
                    FromTensor("fc.weight", torch::zeros({5, 16}));
              }),
              HasSubstr("1 of another shape (fc.weight: got [5,16], want "
                        "[3,16])"));
}

TEST_F(StateDictTest, OtherTypesAreNamedWithBoth) {
  const std::string text = RefusedWith([](std::vector<NamedTensor>& tensors) {
    Find(tensors, "fc.bias") = {
        .name = "fc.bias",
        .type = TensorType::kFloat64,
        .shape = {3},
        .bytes = ByteRope::CopyText(std::string(24, '\0'))};
    Find(tensors, "bn1.num_batches_tracked") =
        FromTensor("bn1.num_batches_tracked", torch::zeros({}));
  });
  EXPECT_THAT(text, HasSubstr("fc.bias: got float64, want float32"));
  EXPECT_THAT(text,
              HasSubstr("bn1.num_batches_tracked: got float32, want int64"));
}

TEST_F(StateDictTest, ValuesThatAreNotFiniteAreNamed) {
  EXPECT_THAT(RefusedWith([](std::vector<NamedTensor>& tensors) {
                Find(tensors, "fc.bias") = FromTensor(
                    "fc.bias",
                    torch::full({3}, std::numeric_limits<float>::quiet_NaN()));
              }),
              HasSubstr("1 not finite (fc.bias)"));
}

TEST_F(StateDictTest, ALongListIsCut) {
  const std::string text = RefusedWith([](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) tensor.name = "x." + tensor.name;
  });
  EXPECT_THAT(text, HasSubstr("; and "));
  EXPECT_THAT(text, HasSubstr(" more)"));
}

// A header that claims more than the file holds.
TEST_F(StateDictTest, LyingHeaderIsDataLossThatNamesTheTensor) {
  const std::string header =
      R"({"fc.bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  WriteText(File(), file + header + "1234");
  const absl::Status status = Load(*MakeSmooth(1));
  EXPECT_THAT(status, IsError(kDataLoss, "fc.bias"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(File()));
}

TEST_F(StateDictTest, AMissingFileIsNamed) {
  EXPECT_THAT(Load(*MakeSmooth(1)), IsError(kNotFound, File()));
}

}  // namespace
}  // namespace cohort
