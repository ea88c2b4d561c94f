#include "tests/kernels/reference/optimizer_oracle.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace cohort::kernels {
namespace {

using State = std::array<double, 4>;

// How much the weight falls in one update. `g` has the decay in it, unless the
// rule is of those that shrink the weight itself.
double Sgd(const OracleStep& step, double g, State& state) {
  if (step.kind == OptimizerKind::kSgd) return step.rate * g;
  const double momentum = step.numbers.momentum;
  double& v = state[0];
  v = momentum * v + g;
  const bool nesterov = step.kind == OptimizerKind::kNesterov;
  return step.rate * (nesterov ? g + momentum * v : v);
}

double Adam(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  double& m = state[0];
  double& v = state[1];
  m = n.adam_beta1 * m + (1 - n.adam_beta1) * g;
  v = n.adam_beta2 * v + (1 - n.adam_beta2) * g * g;
  double& largest = state[2];
  largest = std::max(largest, v);
  const bool lamb = step.kind == OptimizerKind::kLamb;
  const double square = n.adam_amsgrad && !lamb ? largest : v;
  return step.rate * (m / (1 - std::pow(n.adam_beta1, step.update))) /
         (std::sqrt(square / (1 - std::pow(n.adam_beta2, step.update))) +
          (lamb ? n.lamb_epsilon : n.adam_epsilon));
}

double Adagrad(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  if (step.update == 1) state[0] = n.adagrad_initial;
  state[0] += g * g;
  return step.rate / (1 + (step.update - 1) * n.adagrad_lr_decay) * g /
         (std::sqrt(state[0]) + n.adagrad_epsilon);
}

double RmsProp(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  auto& [square, velocity, mean, unused] = state;
  square = n.rmsprop_alpha * square + (1 - n.rmsprop_alpha) * g * g;
  mean = n.rmsprop_alpha * mean + (1 - n.rmsprop_alpha) * g;
  const double variance = square - (n.rmsprop_centered ? mean * mean : 0);
  const double change = g / (std::sqrt(variance) + n.rmsprop_epsilon);
  velocity = n.rmsprop_momentum * velocity + change;
  return step.rate * velocity;
}

double Adadelta(const OracleStep& step, double g, State& state) {
  const double rho = step.numbers.adadelta_rho;
  const double epsilon = step.numbers.adadelta_epsilon;
  auto& [square, changes, unused, unused2] = state;
  square = rho * square + (1 - rho) * g * g;
  const double change =
      g * std::sqrt(changes + epsilon) / std::sqrt(square + epsilon);
  changes = rho * changes + (1 - rho) * change * change;
  return step.rate * change;
}

double Adamax(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  state[0] = n.adam_beta1 * state[0] + (1 - n.adam_beta1) * g;
  state[1] = std::max(n.adam_beta2 * state[1], std::abs(g) + n.adam_epsilon);
  return step.rate / (1 - std::pow(n.adam_beta1, step.update)) * state[0] /
         state[1];
}

double NAdam(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  auto& [m, v, unused, unused2] = state;
  m = n.adam_beta1 * m + (1 - n.adam_beta1) * g;
  v = n.adam_beta2 * v + (1 - n.adam_beta2) * g * g;
  const auto mu = [&n](double t) {
    return n.adam_beta1 *
           (1 - 0.5 * std::pow(0.96, t * n.nadam_momentum_decay));
  };
  double product = 1;
  for (double t = 1; t <= step.update; ++t) product *= mu(t);
  const double root =
      std::sqrt(v / (1 - std::pow(n.adam_beta2, step.update))) + n.adam_epsilon;
  const double next = mu(step.update + 1);
  return step.rate *
         ((1 - mu(step.update)) / (1 - product) * g +
          next / (1 - product * next) * m) /
         root;
}

double RAdam(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  const double t = step.update;
  auto& [m, v, unused, unused2] = state;
  m = n.adam_beta1 * m + (1 - n.adam_beta1) * g;
  v = n.adam_beta2 * v + (1 - n.adam_beta2) * g * g;
  const double mean = m / (1 - std::pow(n.adam_beta1, t));
  const double power = std::pow(n.adam_beta2, t);
  const double end = 2 / (1 - n.adam_beta2) - 1;
  const double rho = end - 2 * t * power / (1 - power);
  if (rho <= 5) return step.rate * mean;
  const double r =
      std::sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho));
  return step.rate * mean * r * std::sqrt(1 - power) /
         (std::sqrt(v) + n.adam_epsilon);
}

double Rprop(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  auto& [before, length, unused, unused2] = state;
  if (step.update == 1) length = step.rate;
  const double turn = g * before;
  if (turn != 0) length *= turn > 0 ? n.rprop_up : n.rprop_down;
  length = std::clamp(length, n.rprop_step_least, n.rprop_step_most);
  before = turn < 0 ? 0 : g;
  return before == 0 ? 0 : std::copysign(length, before);
}

double Dampened(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  state[0] =
      step.update == 1 ? g : n.momentum * state[0] + (1 - n.dampening) * g;
  return step.rate * state[0];
}

double Lion(const OracleStep& step, double g, State& state) {
  const OptimizerNumbers& n = step.numbers;
  const double mixed = n.lion_beta1 * state[0] + (1 - n.lion_beta1) * g;
  state[0] = n.lion_beta2 * state[0] + (1 - n.lion_beta2) * g;
  return mixed == 0 ? 0 : std::copysign(step.rate, mixed);
}

bool ShrinksWeights(const OracleStep& step) {
  const bool either =
      step.kind == OptimizerKind::kNAdam || step.kind == OptimizerKind::kRAdam;
  return step.kind == OptimizerKind::kAdamW ||
         step.kind == OptimizerKind::kLion ||
         step.kind == OptimizerKind::kLamb ||
         (either && step.numbers.decoupled_decay);
}

double Fall(const OracleStep& step, double g, State& state) {
  switch (step.kind) {
    case OptimizerKind::kAuto:
      break;
    case OptimizerKind::kSgd:
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
    case OptimizerKind::kLars:
      return Sgd(step, g, state);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
    case OptimizerKind::kLamb:
      return Adam(step, g, state);
    case OptimizerKind::kLion:
      return Lion(step, g, state);
    case OptimizerKind::kDampened:
      return Dampened(step, g, state);
    case OptimizerKind::kRprop:
      return Rprop(step, g, state);
    case OptimizerKind::kRAdam:
      return RAdam(step, g, state);
    case OptimizerKind::kNAdam:
      return NAdam(step, g, state);
    case OptimizerKind::kAdamax:
      return Adamax(step, g, state);
    case OptimizerKind::kAdadelta:
      return Adadelta(step, g, state);
    case OptimizerKind::kRmsProp:
      return RmsProp(step, g, state);
    case OptimizerKind::kAdagrad:
      return Adagrad(step, g, state);
  }
  return NAN;
}

}  // namespace

std::string OptimizerCase::name() const {
  return absl::StrCat(OptimizerName(kind),
                      numbers == OptimizerNumbers() ? "" : ", other numbers");
}

double OptimizerCase::rate() const {
  switch (kind) {
    case OptimizerKind::kLars:
      return 10;  // A trust ratio is some thousandths.
    case OptimizerKind::kAdadelta:
      return 10;  // So are the first changes.
    case OptimizerKind::kRmsProp:
      return 0.01;  // The first quotient is 10.
    default:
      return 0.05;
  }
}

const std::vector<OptimizerCase>& OptimizerCases() {
  static const auto& cases = *[] {
    auto* list = new std::vector<OptimizerCase>;
    for (size_t k = 1; k < OptimizerNames().size(); ++k) {
      list->push_back({.kind = static_cast<OptimizerKind>(k)});
    }
    using enum OptimizerKind;
    list->insert(
        list->end(),
        {
            {kNesterov, {.maximize = true}},
            {kLars, {.maximize = true}},
            {kLamb, {.adam_beta2 = 0.99, .lamb_epsilon = 1e-3}},
            {kAdam, {.adam_amsgrad = true}},
            {kAdamW, {.adam_amsgrad = true, .maximize = true}},
            {kAdagrad, {.adagrad_lr_decay = 0.1, .adagrad_initial = 0.5}},
            {kRmsProp, {.rmsprop_momentum = 0.5}},
            {kRmsProp, {.rmsprop_centered = true}},
            {kRmsProp, {.rmsprop_momentum = 0.5, .rmsprop_centered = true}},
            {kNAdam, {.decoupled_decay = true}},
            {kRAdam, {.decoupled_decay = true}},
            {kDampened, {.dampening = 0.5}},
        });
    return list;
  }();
  return cases;
}

void OracleUpdate(const OracleStep& step, double g, OracleElement& element) {
  double& w = element.weight;
  if (ShrinksWeights(step)) {
    w -= step.rate * step.decay * w;
  } else {
    g += step.decay * w;
  }
  w -= Fall(step, g, element.state);
}

}  // namespace cohort::kernels
