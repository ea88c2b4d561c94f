#include "server/ctl/saved_run.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

// Curves have a bounded number of points; this is far above their size.
constexpr int64_t kBytesMax = int64_t{64} << 20;

std::optional<double> NumberAt(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

int64_t CountAt(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_integer()
             ? found->get<int64_t>()
             : 0;
}

std::string TextAt(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

const Json& ObjectAt(const Json& json, const char* name) {
  static const Json& empty = *new Json(Json::object());
  const auto found = json.find(name);
  return found != json.end() && found->is_object() ? *found : empty;
}

// The time of the last training point, which continues over restarts.
double SecondsOf(const Json& curves) {
  const auto train = curves.find("train");
  if (train == curves.end() || !train->is_array() || train->empty() ||
      !train->back().is_object()) {
    return 0;
  }
  return NumberAt(train->back(), "elapsed_seconds").value_or(0);
}

}  // namespace

absl::StatusOr<SavedRun> ReadSavedRun(FileSystem& files,
                                      const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kSavedStatus);
  COHORT_ASSIGN_OR_RETURN(const ByteRope bytes,
                          files.ReadFile(path, kBytesMax));
  const std::string text = bytes.ToString();
  const auto refuse = [&path](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", why, ", want the file that a server writes"));
  };
  if (NestsDeeperThan(text, kJsonNestingMax)) return refuse("nests too deep");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return refuse("is not a JSON object");
  if (TextAt(json, "run_id").empty()) return refuse("names no run");
  SavedRun run{.dir = dir,
               .id = TextAt(json, "run_id"),
               .name = TextAt(json, "run_name"),
               .written_at = NumberAt(json, "server_unix_us").value_or(0) / 1e6,
               .state = TextAt(json, "state"),
               .version = CountAt(json, "version"),
               .samples = CountAt(json, "samples"),
               .samples_total = CountAt(json, "samples_total"),
               .seconds = SecondsOf(ObjectAt(json, "curves")),
               .loss = NumberAt(json, "train_loss")};
  if (run.name.empty()) run.name = run.id;
  run.ended = json.value("ended", Json()) == Json(true);
  run.test = NumberAt(json, "test_miou");
  run.test_is_miou = run.test.has_value();
  if (!run.test_is_miou) run.test = NumberAt(json, "test_accuracy");
  const Json& policy = ObjectAt(json, "policy");
  run.policy = TextAt(policy, "text");
  for (const auto& [name, value] : ObjectAt(policy, "settings").items()) {
    run.settings[name] =
        value.is_string() ? value.get<std::string>() : value.dump();
  }
  return run;
}

std::string StateOf(const SavedRun& run) {
  if (!run.ended) return "unfinished";
  return run.samples >= run.samples_total ? "done" : "stopped";
}

double ImagesPerSecond(const SavedRun& run) {
  return run.seconds > 0 ? static_cast<double>(run.samples) / run.seconds : 0;
}

}  // namespace cohort
