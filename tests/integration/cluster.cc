#include "tests/integration/cluster.h"

#include <openssl/evp.h>

#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/formats/safetensors.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "server/checkpoint/model_tensors.h"
#include "worker/models/model.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

absl::Status RunWorker(const ClusterOptions& options,
                       const std::string& address, Rank rank) {
  const int64_t batch = options.batch_sizes[static_cast<size_t>(rank.value())];
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<Client> client,
      MakeGrpcClient({.server = address, .rank = rank, .batch_size = batch}));
  if (options.wrap) client = options.wrap(std::move(client), rank);
  const Dataset& dataset = *options.dataset;
  Trainer trainer(*client, dataset,
                  {.make_model =
                       [&](uint64_t seed) {
                         return MakeModel({.name = options.model,
                                           .channels = dataset.channels(),
                                           .classes = dataset.classes(),
                                           .seed = seed});
                       },
                   .batch_size = batch,
                   .backend = &kernels::CpuBackend()});
  return trainer.Run();
}

}  // namespace

absl::StatusOr<RunSummary> RunCluster(ClusterOptions options) {
  std::ostringstream progress;
  options.server.listen = "127.0.0.1:0";
  options.server.coordinator.workers =
      static_cast<int32_t>(options.batch_sizes.size());
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                          StartServer(options.server, progress));
  std::vector<absl::Status> statuses(options.batch_sizes.size());
  std::vector<std::jthread> workers;
  for (size_t r = 0; r < statuses.size(); ++r) {
    workers.emplace_back([&, r] {
      statuses[r] =
          RunWorker(options, server->address(), Rank(static_cast<int32_t>(r)));
      if (options.expendable.contains(Rank(static_cast<int32_t>(r)))) {
        statuses[r] = absl::OkStatus();
      }
      // A run that cannot continue must not keep the test waiting.
      if (!statuses[r].ok()) server->RequestStop();
    });
  }
  RunSummary summary = server->Wait();
  workers.clear();
  for (const absl::Status& status : statuses) COHORT_RETURN_IF_ERROR(status);
  if (summary.outcome != RunOutcome::kFinished) {
    return absl::InternalError(
        absl::StrCat("the run did not finish: ", summary.reason));
  }
  return summary;
}

std::string Sha256(const RunSummary& summary) {
  const auto parts =
      EncodeSafetensors(StateDict(*summary.model, *summary.snapshot));
  std::string bytes;
  for (const ByteRope& part : *parts) bytes += part.ToString();
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned length = 0;
  EVP_Digest(bytes.data(), bytes.size(),
             reinterpret_cast<unsigned char*>(digest.data()), &length,
             EVP_sha256(), nullptr);
  digest.resize(length);
  return absl::BytesToHexString(digest);
}

}  // namespace cohort
