#include "common/cli/tf_config.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::json;
using Flags = std::map<std::string, std::string>;

struct Cluster {
  std::vector<std::string> servers;
  // The chief comes first and becomes rank 0.
  std::vector<std::string> chiefs;
  std::vector<std::string> workers;
  std::string task_type;
  int64_t task_index = 0;
};

absl::Status Unusable(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("TF_CONFIG: ", why));
}

absl::Status AddAddresses(const Json& cluster, const char* type,
                          std::vector<std::string>& addresses) {
  if (!cluster.contains(type)) return absl::OkStatus();
  if (!cluster[type].is_array()) {
    return Unusable(absl::StrCat("got ", cluster[type].dump(), " as cluster.",
                                 type, ", want a list of host:port"));
  }
  for (const Json& address : cluster[type]) {
    if (!address.is_string()) {
      return Unusable(absl::StrCat("got ", address.dump(), " in cluster.", type,
                                   ", want host:port"));
    }
    addresses.push_back(address.get<std::string>());
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> ParseCluster(absl::string_view text) {
  // The errors below print parts of it, and the JSON writer recurses once a
  // level.
  if (NestsDeeperThan(text, kJsonNestingMax)) {
    return Unusable(absl::StrCat("got JSON that nests deeper than ",
                                 kJsonNestingMax,
                                 " levels, want cluster and task"));
  }
  const Json config = Json::parse(text.begin(), text.end(), nullptr,
                                  /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("cluster") ||
      !config["cluster"].is_object() || !config.contains("task") ||
      !config["task"].is_object()) {
    return Unusable(
        absl::StrCat("got '", text, "', want JSON with cluster and task"));
  }
  Cluster cluster;
  const Json& addresses = config["cluster"];
  COHORT_RETURN_IF_ERROR(AddAddresses(addresses, "ps", cluster.servers));
  COHORT_RETURN_IF_ERROR(AddAddresses(addresses, "master", cluster.chiefs));
  COHORT_RETURN_IF_ERROR(AddAddresses(addresses, "chief", cluster.chiefs));
  COHORT_RETURN_IF_ERROR(AddAddresses(addresses, "worker", cluster.workers));
  const Json& task = config["task"];
  const Json index = task.value("index", Json(0));
  if (!task.contains("type") || !task["type"].is_string()) {
    return Unusable("got no task.type, want ps, chief or worker");
  }
  cluster.task_type = task["type"].get<std::string>();
  // Some tools write the index as a string.
  const bool is_index =
      index.is_string()
          ? absl::SimpleAtoi(index.get<std::string>(), &cluster.task_index)
          : index.is_number_integer();
  if (!is_index) {
    return Unusable(
        absl::StrCat("got task.index ", index.dump(), ", want a number"));
  }
  if (index.is_number_integer()) cluster.task_index = index.get<int64_t>();
  if (cluster.servers.size() != 1) {
    return Unusable(absl::StrCat(
        "got ", cluster.servers.size(),
        " addresses in cluster.ps, want 1: one server holds a whole run"));
  }
  return cluster;
}

absl::Status CheckIndex(const Cluster& cluster, size_t count) {
  if (cluster.task_index >= 0 &&
      cluster.task_index < static_cast<int64_t>(count)) {
    return absl::OkStatus();
  }
  return Unusable(absl::StrCat("got task.index ", cluster.task_index,
                               ", but the cluster has ", count, " of type ",
                               cluster.task_type));
}

absl::StatusOr<Flags> ServerFlags(const Cluster& cluster) {
  if (cluster.task_type != "ps") {
    return Unusable(absl::StrCat("got a task of type ", cluster.task_type,
                                 ", want ps: this is the server"));
  }
  COHORT_RETURN_IF_ERROR(CheckIndex(cluster, cluster.servers.size()));
  const std::string& own = cluster.servers[0];
  const size_t colon = own.rfind(':');
  if (colon == std::string::npos) {
    return Unusable(
        absl::StrCat("got ", own, " in cluster.ps, want host:port"));
  }
  return Flags{// The name in the cluster may not be known to this machine yet.
               {"listen", absl::StrCat("0.0.0.0", own.substr(colon))},
               {"workers",
                absl::StrCat(cluster.chiefs.size() + cluster.workers.size())}};
}

absl::StatusOr<Flags> WorkerFlags(const Cluster& cluster) {
  const bool chief =
      cluster.task_type == "chief" || cluster.task_type == "master";
  if (!chief && cluster.task_type != "worker") {
    return Unusable(absl::StrCat("got a task of type ", cluster.task_type,
                                 ", want chief or worker: this is a worker"));
  }
  COHORT_RETURN_IF_ERROR(CheckIndex(
      cluster, chief ? cluster.chiefs.size() : cluster.workers.size()));
  const int64_t before =
      chief ? 0 : static_cast<int64_t>(cluster.chiefs.size());
  return Flags{{"server", cluster.servers[0]},
               {"rank", absl::StrCat(before + cluster.task_index)}};
}

}  // namespace

absl::StatusOr<Flags> FlagsFromTfConfig(absl::string_view text, TaskRole role) {
  COHORT_ASSIGN_OR_RETURN(const Cluster cluster, ParseCluster(text));
  return role == TaskRole::kServer ? ServerFlags(cluster)
                                   : WorkerFlags(cluster);
}

}  // namespace cohort
