#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/main/server.h"
#include "worker/client/client.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// A server and its workers in this process, over loopback gRPC.
struct ClusterOptions {
  ServerOptions server;
  // One entry for each worker.
  std::vector<int64_t> batch_sizes;
  std::string model = "smooth";
  const Dataset* dataset = nullptr;
  // Wraps the client of a worker's trainer.
  std::function<std::unique_ptr<Client>(std::unique_ptr<Client>, Rank)> wrap;
  // Workers whose errors do not end the run.
  std::set<Rank> expendable;
};

// Trains to the end.
// Errors: the first error of any worker, or Internal if the run did not finish.
absl::StatusOr<RunSummary> RunCluster(ClusterOptions options);

// SHA-256 over weights and moving statistics, hexadecimal.
std::string Sha256(const RunSummary& summary);

}  // namespace cohort
