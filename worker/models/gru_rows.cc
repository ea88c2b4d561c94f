#include "worker/models/gru_rows.h"

#include <torch/torch.h>

#include <tuple>

#include "worker/batch_norm/functional.h"
#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

constexpr int64_t kHidden = 128;

class GruRows final : public Model {
 public:
  explicit GruRows(const GruRowsOptions& options)
      : image_width_(options.image_width),
        gru_(register_module(
            "gru", nn::GRU(nn::GRUOptions(
                               options.channels * options.image_width, kHidden)
                               .batch_first(true)))),
        bn_(register_module("bn", nn::BatchNorm1d(kHidden))),
        fc_(register_module("fc", nn::Linear(kHidden, options.classes))) {}

  ModelOutput forward(const at::Tensor& images) override {
    TORCH_CHECK(images.dim() == 4 && images.size(3) == image_width_,
                "gru-rows: got images of shape ", images.sizes(),
                ", want rows of ", image_width_, " pixels");
    // [n, c, h, w] to [n, h, c * w].
    const at::Tensor rows = images.permute({0, 2, 1, 3}).flatten(2);
    const at::Tensor outputs = std::get<0>(gru_(rows));
    return {.logits = fc_(BatchNorm(bn_, outputs.select(1, -1)))};
  }

 private:
  const int64_t image_width_;
  nn::GRU gru_;
  nn::BatchNorm1d bn_;
  nn::Linear fc_;
};

}  // namespace

std::shared_ptr<Model> MakeGruRows(const GruRowsOptions& options) {
  return std::make_shared<GruRows>(options);
}

}  // namespace cohort
