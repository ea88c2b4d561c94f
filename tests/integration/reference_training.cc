#include "tests/integration/reference_training.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/permutation.h"
#include "server/checkpoint/model_tensors.h"
#include "worker/models/model.h"

namespace cohort {
namespace {

// Exempt from weight decay: biases and the parameters of batch norm, which are
// the only vectors.
bool IsExempt(const at::Tensor& parameter) { return parameter.dim() < 2; }

// The server's default, auto, is momentum where workers register no optimizer.
bool IsMomentum(const OptimizerOptions& o) {
  return o.kind != OptimizerKind::kSgd;
}

torch::optim::SGD MakeOptimizer(Model& model, const OptimizerOptions& o) {
  std::vector<at::Tensor> decayed;
  std::vector<at::Tensor> exempt;
  for (const auto& item : model.named_parameters()) {
    (IsExempt(item.value()) ? exempt : decayed).push_back(item.value());
  }
  const auto group = [&](std::vector<at::Tensor> tensors, double decay) {
    auto options = std::make_unique<torch::optim::SGDOptions>(o.learning_rate);
    options->momentum(IsMomentum(o) ? o.numbers.momentum : 0)
        .nesterov(o.kind == OptimizerKind::kNesterov)
        .weight_decay(decay);
    return torch::optim::OptimizerParamGroup(std::move(tensors),
                                             std::move(options));
  };
  return torch::optim::SGD({group(decayed, o.weight_decay), group(exempt, 0)},
                           torch::optim::SGDOptions(o.learning_rate));
}

double CosineRate(double base, int64_t samples, int64_t total) {
  return base *
         (1 + std::cos(std::numbers::pi * static_cast<double>(samples) /
                       static_cast<double>(total))) /
         2;
}

// The mean loss over all ranges, normalised separately or all together.
at::Tensor Loss(const ReferenceOptions& options, Model& model,
                const std::vector<std::vector<int64_t>>& parts) {
  const Dataset& dataset = *options.dataset;
  at::Tensor sum = torch::zeros({}, options.type);
  int64_t samples = 0;
  for (const std::vector<int64_t>& indices : parts) {
    const auto n = static_cast<int64_t>(indices.size());
    at::Tensor images = torch::empty(
        {n, dataset.channels(), dataset.height(), dataset.width()});
    at::Tensor labels = torch::empty({n}, torch::kLong);
    dataset.Read({.indices = indices},
                 absl::MakeSpan(images.data_ptr<float>(),
                                static_cast<size_t>(images.numel())),
                 absl::MakeSpan(labels.data_ptr<int64_t>(), indices.size()));
    sum = sum + torch::nn::functional::cross_entropy(
                    model.forward(images.to(options.type)).logits, labels,
                    torch::nn::functional::CrossEntropyFuncOptions().reduction(
                        torch::kSum));
    samples += n;
  }
  return sum / samples;
}

}  // namespace

StateTensors TrainReference(const ReferenceOptions& options) {
  const int64_t samples = options.dataset->train_size();
  std::vector<ReferenceStep> steps;
  for (int64_t at = 0; at < samples; at += options.batch_size) {
    const int64_t end = std::min(at + options.batch_size, samples);
    steps.push_back({.ranges = {{.begin = at, .end = end}}, .clock = at});
  }
  return TrainReference(options, steps);
}

StateTensors TrainReference(const ReferenceOptions& options,
                            const std::vector<ReferenceStep>& steps) {
  const Dataset& dataset = *options.dataset;
  const auto model = *MakeModel({.name = options.model,
                                 .channels = dataset.channels(),
                                 .classes = dataset.classes(),
                                 .seed = options.seed});
  model->to(options.type);
  model->train();
  torch::optim::SGD optimizer = MakeOptimizer(*model, options.optimizer);
  const int64_t samples = dataset.train_size();
  const std::vector<int64_t> order = EpochPermutation(options.seed, 0, samples);
  for (const ReferenceStep& step : steps) {
    std::vector<std::vector<int64_t>> parts(1);
    for (const IndexRange& range : step.ranges) {
      if (options.local) parts.emplace_back();
      parts.back().insert(parts.back().end(), order.begin() + range.begin,
                          order.begin() + range.end);
    }
    std::erase_if(parts, [](const auto& part) { return part.empty(); });
    for (auto& group : optimizer.param_groups()) {
      static_cast<torch::optim::SGDOptions&>(group.options())
          .lr(options.optimizer.schedule == ScheduleKind::kCosine
                  ? CosineRate(options.optimizer.learning_rate, step.clock,
                               samples)
                  : options.optimizer.learning_rate);
    }
    optimizer.zero_grad();
    Loss(options, *model, parts).backward();
    optimizer.step();
  }
  StateTensors state;
  for (const auto& item : model->named_parameters()) {
    state[item.key()] = item.value().detach().to(at::kDouble);
  }
  for (const auto& item : model->named_buffers()) {
    state[item.key()] = item.value().to(at::kDouble);
  }
  return state;
}

StateTensors StateOf(const RunSummary& summary) {
  StateTensors state;
  const SafetensorsContent content =
      StateDict(*summary.model, *summary.snapshot);
  for (const NamedTensor& tensor : content.tensors) {
    at::Tensor value = torch::empty(
        tensor.shape,
        tensor.type == TensorType::kInt64 ? at::kLong : at::kFloat);
    tensor.bytes.CopyTo(absl::MakeSpan(
        static_cast<std::byte*>(value.data_ptr()), value.nbytes()));
    state[tensor.name] = value.to(at::kDouble);
  }
  return state;
}

double RelativeDistance(const at::Tensor& a, const at::Tensor& b) {
  const double scale = b.norm().item<double>();
  const double distance = (a - b).norm().item<double>();
  return scale > 0 ? distance / scale : distance;
}

double RelativeDistance(const StateTensors& a, const StateTensors& b) {
  double distance = 0;
  double scale = 0;
  for (const auto& [name, tensor] : b) {
    distance += (a.at(name) - tensor).square().sum().item<double>();
    scale += tensor.square().sum().item<double>();
  }
  return std::sqrt(distance / scale);
}

}  // namespace cohort
