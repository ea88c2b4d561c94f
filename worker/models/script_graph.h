#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort {

// A batch-norm layer of a TorchScript file: the tensors weight, bias,
// running_mean and running_var of one module.
struct ScriptBatchNorm {
  // Dotted path of the module.
  std::string path;
  int64_t channels = 0;
  double epsilon = 0;
  // Absent: cumulative average.
  std::optional<double> momentum;
  bool affine = false;
  bool track_statistics = false;
};

struct ScriptSurvey {
  // In the order of their first calls.
  std::vector<ScriptBatchNorm> batch_norms;
  // What a user should know, a sentence each.
  std::vector<std::string> warnings;
};

// Reads the graph of forward and of all it calls. Nothing is run.
//
// Cohort trains a graph if every batch norm in it is a call of
// aten::batch_norm whose tensors are those of one module, so that calls can be
// told apart, and whose `training` follows the module; and if nothing in it
// keeps state between calls, because a step must be a function of weights and
// images alone.
//
// Errors: InvalidArgument naming the node, with module path or source line: a
//   batch norm whose `training` is a constant although it has moving
//   statistics (a trace), whose tensors are constants (a frozen module),
//   computed, or of several modules, or are none; one whose epsilon or
//   momentum is computed; a batch norm of another form; a write to an
//   attribute or in place to a parameter or buffer; a task of its own thread;
//   a call that is only known when it is made.
absl::StatusOr<ScriptSurvey> SurveyScript(const torch::jit::Module& module);

// Takes PyTorch's check of the batch's size out of the module's functions: it
// refuses one element a channel, which for one worker of many is no error.
// Call before anything else looks at the module: what a graph looks like
// inlined is remembered from the first time on.
void AllowOneElementAChannel(torch::jit::Module& module);

}  // namespace cohort
