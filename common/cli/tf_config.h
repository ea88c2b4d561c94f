#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// What a program is within a cluster.
enum class TaskRole { kServer, kWorker };

// What TensorFlow's TF_CONFIG says, as flags by name, so that the programs run
// under whatever starts TensorFlow's parameter servers: Kubeflow's TFJob, for
// one.
//
//   server, a task of type ps:    listen (all addresses, the port of this
//                                 task), workers (chief and workers together)
//   worker, chief or worker:      server (the address of ps 0), rank (the
//                                 chief, or master, is 0; then the workers by
//                                 index)
//
// Errors: InvalidArgument saying what of TF_CONFIG cannot be used: it is no
//   JSON of that shape, the task is none for this program, or it has another
//   number of parameter servers than one.
// Source: tensorflow.org/guide/distributed_training, "Setting up the
//   TF_CONFIG environment variable".
absl::StatusOr<std::map<std::string, std::string>> FlagsFromTfConfig(
    absl::string_view text, TaskRole role);

}  // namespace cohort
