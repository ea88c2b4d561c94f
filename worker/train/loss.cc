#include "worker/train/loss.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "worker/datasets/dataset.h"

namespace cohort {
namespace {

// Inputs of the autograd function besides its tensors.
struct Terms {
  // As in CrossEntropy.
  at::Tensor class_weights;
  double label_smoothing = 0;
};

// Shapes `values` [classes] so that it broadcasts along dimension 1.
at::Tensor AlongClasses(const at::Tensor& values, int64_t dimensions) {
  std::vector<int64_t> shape(static_cast<size_t>(dimensions), 1);
  shape[1] = -1;
  return values.view(shape);
}

// With p the softmax, d the label's indicator, v 1 or 0 for valid or ignored,
// and W the sum of w, the derivative by logit k is
//   v * (((1 - e) * w_y + e / C * W) * p_k - (1 - e) * w_y * d_k - e / C * w_k)
class CrossEntropyFunction final
    : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& logits, const at::Tensor& labels,
                            const Terms& terms) {
    const at::Tensor wide = logits.scalar_type() == torch::kDouble
                                ? logits
                                : logits.to(torch::kFloat);
    const at::TensorOptions options = wide.options();
    at::Tensor buffer = at::log_softmax(wide, 1);
    const at::Tensor valid = labels.ne(kIgnoredLabel).unsqueeze(1).to(options);
    // An ignored label may use any class: the term is multiplied by 0.
    const at::Tensor index = labels.clamp_min(0).unsqueeze(1);
    at::Tensor own = valid * (1 - terms.label_smoothing);
    const at::Tensor weights = terms.class_weights.defined()
                                   ? terms.class_weights.to(options)
                                   : at::ones({wide.size(1)}, options);
    if (terms.class_weights.defined()) own.mul_(weights.take(index));
    at::Tensor sum = (own * buffer.gather(1, index)).sum(torch::kDouble).neg();
    at::Tensor scale = own;
    at::Tensor spread;
    if (terms.label_smoothing > 0) {
      const double share =
          terms.label_smoothing / static_cast<double>(wide.size(1));
      spread = AlongClasses(weights * share, wide.dim());
      sum.sub_((valid * (buffer * spread).sum(1, true)).sum(torch::kDouble));
      scale = own + valid * spread.sum();
    }
    // From here on the buffer holds the gradient.
    buffer.exp_().mul_(scale).scatter_add_(1, index, own.neg());
    if (spread.defined()) buffer.sub_(valid * spread);
    context->save_for_backward({buffer});
    return sum;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    return {context->get_saved_variables()[0] * gradients[0], at::Tensor(),
            at::Tensor()};
  }
};

absl::Status Refuse(absl::string_view what, absl::string_view seen,
                    absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": got ", seen, ", want ", wanted));
}

std::string ShapeText(const at::Tensor& tensor) {
  return absl::StrCat(
      "[", absl::StrJoin(tensor.sizes().begin(), tensor.sizes().end(), ","),
      "]");
}

std::string WeightsText(absl::Span<const double> weights) {
  return absl::StrJoin(weights, ",", [](std::string* out, double weight) {
    absl::StrAppendFormat(out, "%.9g", weight);
  });
}

absl::Status Validate(const LossOptions& options, int64_t classes) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1)) {
    return Refuse("label smoothing", absl::StrCat(options.label_smoothing),
                  "0 or more and below 1");
  }
  const std::vector<double>& weights = options.class_weights;
  if (weights.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(weights.size()) != classes) {
    return Refuse("--class_weights", absl::StrCat(weights.size(), " weights"),
                  absl::StrCat(classes, ", one per class"));
  }
  for (const double weight : weights) {
    // A weight beyond float32's range would become infinite.
    if (weight >= 0 && std::isfinite(static_cast<float>(weight))) continue;
    return Refuse("--class_weights", absl::StrCat(weight),
                  "finite numbers of at least 0");
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) {
        return static_cast<float>(weight) == 0;
      })) {
    return Refuse("--class_weights", "none above 0", "at least one");
  }
  return absl::OkStatus();
}

}  // namespace

CrossEntropy::CrossEntropy(const LossOptions& options, int64_t classes)
    : classes_(classes), label_smoothing_(options.label_smoothing) {
  if (options.class_weights.empty()) return;
  class_weights_ = torch::tensor(options.class_weights, torch::kDouble)
                       .to(torch::kFloat)
                       .to(torch::kDouble);
  moved_weights_ = class_weights_;
}

void CrossEntropy::MoveTo(at::Device device) {
  if (class_weights_.defined()) moved_weights_ = class_weights_.to(device);
}

absl::StatusOr<CrossEntropy> CrossEntropy::Make(const LossOptions& options,
                                                int64_t classes) {
  const absl::Status valid = Validate(options, classes);
  if (!valid.ok()) return valid;
  return CrossEntropy(options, classes);
}

std::string CrossEntropy::text() const {
  std::string text = "cross-entropy";
  if (label_smoothing_ > 0) {
    absl::StrAppendFormat(&text, ", label smoothing %.9g", label_smoothing_);
  }
  if (class_weights_.defined()) {
    absl::StrAppend(&text, ", class weights ",
                    WeightsText({class_weights_.data_ptr<double>(),
                                 static_cast<size_t>(classes_)}));
  }
  return text;
}

absl::StatusOr<double> CrossEntropy::WeightOf(const at::Tensor& labels) const {
  const at::Tensor flat = labels.contiguous();
  std::vector<int64_t> counts(static_cast<size_t>(classes_));
  for (const int64_t label : absl::MakeConstSpan(
           flat.data_ptr<int64_t>(), static_cast<size_t>(flat.numel()))) {
    if (label == kIgnoredLabel) continue;
    if (label < 0 || label >= classes_) {
      return Refuse("labels", absl::StrCat("class ", label),
                    absl::StrCat("0 to ", classes_ - 1, ", or ", kIgnoredLabel,
                                 " for an ignored one"));
    }
    ++counts[static_cast<size_t>(label)];
  }
  double weight = 0;
  for (size_t c = 0; c < counts.size(); ++c) {
    const double of_class =
        class_weights_.defined() ? class_weights_.data_ptr<double>()[c] : 1;
    weight += of_class * static_cast<double>(counts[c]);
  }
  return weight;
}

absl::StatusOr<at::Tensor> CrossEntropy::Sum(const at::Tensor& logits,
                                             const at::Tensor& labels) const {
  std::vector<int64_t> wanted = labels.sizes().vec();
  if (!wanted.empty()) wanted.insert(wanted.begin() + 1, classes_);
  if (logits.sizes() != at::IntArrayRef(wanted)) {
    return Refuse("loss",
                  absl::StrCat("logits ", ShapeText(logits), " for labels ",
                               ShapeText(labels), " of ", classes_, " classes"),
                  absl::StrCat("[", absl::StrJoin(wanted, ","), "]"));
  }
  return CrossEntropyFunction::apply(
      logits, labels,
      Terms{.class_weights = moved_weights_,
            .label_smoothing = label_smoothing_});
}

}  // namespace cohort
