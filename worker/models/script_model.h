#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/models/model.h"

namespace cohort {

// A user's own network: the TorchScript file `options.name`, as written by
// torch.jit.script(model).save(file). Parameters and batch-norm layers keep
// their names; so do buffers:
//   batch norm's moving statistics are the server's;
//   other float32 buffers are parameters that are not trained, so that all
//     workers have the same and the exported model has them;
//   buffers of other types keep the file's values, and are not exported.
// Initial values and statistics are the file's, whatever the seed. Two
// parameters over the same memory become one.
//
// forward(images) returns the logits, a tuple whose first entry is the logits,
// or a dictionary whose entry `out` is the logits; other entries are not used.
//
// Warnings go to options.warn: dropout that does not follow train() and
// eval(), and buffers that are not exported.
// Errors: NotFound no such file; InvalidArgument a file that is not
//   TorchScript, a graph that SurveyScript refuses, a forward that takes or
//   returns something else, no parameters.
absl::StatusOr<std::shared_ptr<Model>> LoadScriptModel(
    const ModelOptions& options);

}  // namespace cohort
