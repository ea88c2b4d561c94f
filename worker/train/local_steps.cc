#include "worker/train/local_steps.h"

#include <torch/torch.h>

#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using Kind = LocalOptimizerOptions::Kind;

std::unique_ptr<torch::optim::OptimizerOptions> OptionsFor(
    const LocalOptimizerOptions& options, double rate, double decay) {
  if (options.kind == Kind::kAdamW) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(rate).weight_decay(decay));
  }
  return std::make_unique<torch::optim::SGDOptions>(
      torch::optim::SGDOptions(rate)
          .momentum(options.momentum)
          .weight_decay(decay)
          .nesterov(options.kind == Kind::kNesterov));
}

std::vector<torch::optim::OptimizerParamGroup> GroupsOf(
    const ModelWeights& weights, const LocalOptimizerOptions& options,
    double rate_factor) {
  // By factors of rate and decay.
  std::map<std::pair<double, double>, std::vector<at::Tensor>> parameters;
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    const ParameterSpec& spec = weights.layout().parameters[i];
    if (!spec.trainable) continue;
    parameters[{spec.rate_multiplier,
                spec.decay_exempt ? 0 : spec.decay_multiplier}]
        .push_back(weights.parameters()[i]);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto& [factors, members] : parameters) {
    groups.emplace_back(
        std::move(members),
        OptionsFor(options, options.learning_rate * rate_factor * factors.first,
                   options.weight_decay * factors.second));
  }
  return groups;
}

}  // namespace

std::string LocalOptimizerText(const LocalOptimizerOptions& options) {
  if (options == LocalOptimizerOptions()) return "";
  const char* const name = options.kind == Kind::kSgd        ? "sgd"
                           : options.kind == Kind::kNesterov ? "nesterov"
                                                             : "adamw";
  std::string text =
      absl::StrCat(name, ", learning rate ", options.learning_rate);
  if (options.kind != Kind::kAdamW) {
    absl::StrAppend(&text, ", momentum ", options.momentum);
  }
  absl::StrAppend(&text, ", weight decay ", options.weight_decay);
  return text;
}

LocalSteps::LocalSteps(ModelWeights& weights,
                       const LocalOptimizerOptions& options, double rate_factor)
    : weights_(weights) {
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    if (!weights.layout().parameters[i].trainable) continue;
    const at::Tensor& parameter = weights.parameters()[i];
    copies_.push_back(
        {.parameter = parameter, .before = parameter.detach().clone()});
  }
  std::vector<torch::optim::OptimizerParamGroup> groups =
      GroupsOf(weights, options, rate_factor);
  if (options.kind == Kind::kAdamW) {
    optimizer_ = std::make_unique<torch::optim::AdamW>(std::move(groups));
  } else {
    optimizer_ = std::make_unique<torch::optim::SGD>(
        std::move(groups), torch::optim::SGDOptions(options.learning_rate));
  }
}

LocalSteps::~LocalSteps() = default;

void LocalSteps::Step() {
  for (Copy& copy : copies_) {
    copy.had_gradient |= copy.parameter.grad().defined();
  }
  optimizer_->step();
  weights_.ClearGradients();
}

void LocalSteps::Finish(double scale) {
  const torch::NoGradGuard no_grad;
  for (Copy& copy : copies_) {
    at::Tensor& parameter = copy.parameter;
    if (copy.had_gradient) {
      parameter.mutable_grad() = (copy.before - parameter.detach()).mul_(scale);
    }
    parameter.copy_(copy.before);
  }
}

}  // namespace cohort
