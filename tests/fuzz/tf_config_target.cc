#include <map>

#include "common/cli/tf_config.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void RunTfConfig(absl::string_view input) {
  for (const TaskRole role : {TaskRole::kServer, TaskRole::kWorker}) {
    const absl::StatusOr<std::map<std::string, std::string>> flags =
        FlagsFromTfConfig(input, role);
    RequireCode(flags.status(), {absl::StatusCode::kInvalidArgument});
    if (!flags.ok()) continue;
    const bool server = role == TaskRole::kServer;
    COHORT_CHECK(flags->size() == 2, "want two flags");
    COHORT_CHECK(flags->contains(server ? "listen" : "server"), "no address");
    COHORT_CHECK(flags->contains(server ? "workers" : "rank"), "no number");
  }
}

std::vector<std::string> TfConfigSeeds() {
  const std::string cluster =
      R"({"cluster":{"ps":["ps-0:2222"],"chief":["chief-0:2222"],)"
      R"("worker":["w-0:2222","w-1:2222"]},"task":)";
  return {absl::StrCat(cluster, R"({"type":"ps","index":0}})"),
          absl::StrCat(cluster, R"({"type":"chief"}})"),
          absl::StrCat(cluster, R"({"type":"worker","index":"1"}})"),
          R"({"cluster":{"master":["m:1"],"ps":["[::1]:5"]},)"
          R"("task":{"type":"master","index":0},"environment":"cloud"})"};
}

}  // namespace

Target TfConfigTarget() {
  return {.name = "tf_config",
          .run = RunTfConfig,
          .seeds = TfConfigSeeds,
          .input_bytes_max = 2048};
}

}  // namespace cohort::fuzz
