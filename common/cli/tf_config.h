#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The role of a program within a cluster.
enum class TaskRole { kServer, kWorker };

// TensorFlow's TF_CONFIG as flags by name, so that the programs run under tools
// that start TensorFlow's parameter servers, such as Kubeflow's TFJob.
//
//   server, a task of type ps:    listen (all addresses, the port of this
//                                 task), workers (chief and workers together)
//   worker, chief or worker:      server (the address of ps 0), rank (the
//                                 chief, or master, is 0; then the workers by
//                                 index)
//
// Errors: InvalidArgument naming the part of TF_CONFIG that cannot be used: it
//   is not JSON of that shape, the task is not one for this program, or the
//   number of parameter servers is not one.
// Source: tensorflow.org/guide/distributed_training, "Setting up the
//   TF_CONFIG environment variable".
absl::StatusOr<std::map<std::string, std::string>> FlagsFromTfConfig(
    absl::string_view text, TaskRole role);

}  // namespace cohort
