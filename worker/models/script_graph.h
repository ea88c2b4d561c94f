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
  // If absent, cumulative average.
  std::optional<double> momentum;
  bool affine = false;
  bool track_statistics = false;
};

struct ScriptSurvey {
  // In the order of their first calls.
  std::vector<ScriptBatchNorm> batch_norms;
  // Warnings for the user, one sentence each.
  std::vector<std::string> warnings;
};

// Reads the graph of forward and of all functions that it calls. Runs nothing.
//
// Cohort trains a graph if every batch norm in it is a call of
// aten::batch_norm whose tensors are those of one module, so that calls can be
// distinguished, and whose `training` follows the module; and if nothing in it
// keeps state between calls, because a step must be a function of weights and
// images alone.
//
// Errors: InvalidArgument naming the node, with module path or source line: a
//   batch norm whose `training` is a constant although it has moving statistics
//   (a trace), whose tensors are constants (a frozen module), computed, or of
//   several modules, or are none; one whose epsilon or momentum is computed; a
//   batch norm of another form; a write to an attribute or in place to a
//   parameter or buffer; a forked task; a call whose target is known only at
//   run time.
absl::StatusOr<ScriptSurvey> SurveyScript(const torch::jit::Module& module);

// Removes PyTorch's check of the batch size from the module's functions: the
// check refuses one element a channel, which is valid for one worker of many.
// Call before anything else inspects the module: the inlined graph is cached at
// its first use.
void AllowOneElementAChannel(torch::jit::Module& module);

}  // namespace cohort
