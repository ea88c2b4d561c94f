#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/formats/checkpoint_files.h"
#include "common/formats/json_depth.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/coordinator.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/memory_file_system.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "/checkpoints";
constexpr int kFileMode = 0600;
constexpr int kFolderMode = 0700;

std::string FileIn(const std::string& checkpoint, const char* name) {
  return absl::StrCat(kFolder, "/", checkpoint, "/", name);
}

// A whole checkpoint in memory, to be damaged.
class Written {
 public:
  explicit Written(const RunState& state) {
    COHORT_CHECK(files_.MakeDirectory(kFolder, kFolderMode).ok(), kFolder);
    const absl::Status written =
        WriteCheckpoint(files_, kFolder, 1, ExampleIdentity(), state);
    COHORT_CHECK(written.ok(), written.ToString());
    name_ = ListCheckpoints(files_, kFolder)->back().Text();
  }

  std::string Read(const char* name) {
    return files_.ReadFile(FileIn(name_, name), kAnyFileSize)->ToString();
  }
  void Replace(const char* name, absl::string_view content) {
    const ByteRope bytes = ByteRope::CopyText(content);
    COHORT_CHECK(files_
                     .WriteFile(FileIn(name_, name), kFileMode,
                                absl::MakeConstSpan(&bytes, 1))
                     .ok(),
                 name);
  }
  FileSystem& files() { return files_; }

 private:
  MemoryFileSystem files_;
  std::string name_;
};

// A state that was read continues as a run, and is written and read unchanged.
void CheckLoaded(const Checkpoint& loaded) {
  CoordinatorOptions options;
  options.run_id = loaded.identity.run_id;
  options.run_name = loaded.identity.run_name;
  // As the server does: it refuses to start where one does not fit.
  if (!SetSettings(loaded.state.settings, options).ok()) return;
  if (!Validate(options).ok()) return;
  options.workers = static_cast<int32_t>(loaded.state.batch_sizes.size());
  if (!Validate(options).ok()) return;
  Coordinator core(options, &loaded.state);
  Effects out;
  core.Tick(absl::Seconds(1000), out);
  core.Status(absl::Seconds(1001));
  const absl::StatusOr<RunState> state = core.State();
  COHORT_CHECK(state.ok(), state.status().ToString());
  COHORT_CHECK(state->snapshot->version == loaded.state.snapshot->version,
               "another version");
}

void CheckFiles(FileSystem& files) {
  std::vector<std::string> problems;
  const absl::StatusOr<std::optional<Checkpoint>> loaded =
      LoadNewestCheckpoint(files, kFolder, problems);
  RequireCode(loaded.status(), {absl::StatusCode::kDataLoss,
                                absl::StatusCode::kFailedPrecondition});
  if (!loaded.ok()) return;
  COHORT_CHECK(loaded->has_value(), "the checkpoint is passed over");
  MemoryFileSystem copy;
  COHORT_CHECK(copy.MakeDirectory(kFolder, kFolderMode).ok(), kFolder);
  const absl::Status written =
      WriteCheckpoint(copy, kFolder, 1, (*loaded)->identity, (*loaded)->state);
  COHORT_CHECK(written.ok(), written.ToString());
  const absl::StatusOr<std::optional<Checkpoint>> again =
      LoadNewestCheckpoint(copy, kFolder, problems);
  COHORT_CHECK(again.ok() && again->has_value(), again.status().ToString());
  COHORT_CHECK(
      (*again)->state.settings == (*loaded)->state.settings &&
          (*again)->state.policy_history == (*loaded)->state.policy_history &&
          (*again)->state.batch_sizes == (*loaded)->state.batch_sizes,
      "another state");
  CheckLoaded(**loaded);
}

// The state of a manifest, as JSON: the input has names and values to put into
// the state of a whole checkpoint, so that the checksum is always right.
void CheckState(Written& written, absl::string_view patch_text) {
  if (NestsDeeperThan(patch_text, kJsonNestingMax - 4)) return;
  const Json patch =
      Json::parse(patch_text.begin(), patch_text.end(), nullptr, false);
  if (!patch.is_object()) return;
  const std::string manifest = written.Read(kCheckpointManifest);
  absl::StatusOr<CheckpointManifest> read =
      DecodeCheckpointManifest("manifest", manifest);
  COHORT_CHECK(read.ok(), read.status().ToString());
  Json state = Json::parse(read->state);
  state.merge_patch(patch);
  read->state = state.dump();
  written.Replace(kCheckpointManifest, EncodeCheckpointManifest(*read));
  CheckFiles(written.files());
  written.Replace(kCheckpointManifest, manifest);
}

// One file as it is, with any damage.
void CheckDamage(Written& written, const char* name, absl::string_view bytes) {
  const std::string whole = written.Read(name);
  written.Replace(name, bytes);
  std::vector<std::string> problems;
  const auto loaded = LoadNewestCheckpoint(written.files(), kFolder, problems);
  RequireCode(loaded.status(), {absl::StatusCode::kDataLoss,
                                absl::StatusCode::kFailedPrecondition});
  // A checksum covers every byte.
  COHORT_CHECK(loaded.ok() == (whole == bytes), "damage goes unnoticed");
  written.Replace(name, whole);
}

void RunCheckpoint(absl::string_view input) {
  static Written& plain = *new Written(ExampleState(7));
  static Written& program = *new Written(ProgramState(7));
  Reader reader(input);
  const int32_t kind = reader.Below(4);
  Written& written = kind == 1 ? program : plain;
  const absl::string_view rest = reader.Rest();
  if (kind < 2) return CheckState(written, rest);
  CheckDamage(written, kind == 2 ? kCheckpointManifest : kCheckpointTensors,
              rest);
}

std::vector<std::string> CheckpointSeeds() {
  std::vector<std::string> seeds;
  for (char kind = 0; kind < 2; ++kind) {
    Written written(kind == 0 ? ExampleState(7) : ProgramState(7));
    const std::string text = written.Read(kCheckpointManifest);
    const Json body = Json::parse(text).at("body");
    for (const auto& [name, value] : body.items()) {
      const Json one = {{name, value}};
      seeds.push_back(std::string(1, kind) + one.dump());
    }
    seeds.push_back(std::string(1, kind) + body.dump());
    if (kind == 0) {
      seeds.push_back("\x02" + text);
      seeds.push_back("\x03" + written.Read(kCheckpointTensors));
    }
  }
  return seeds;
}

}  // namespace

Target CheckpointTarget() {
  return {.name = "checkpoint",
          .run = RunCheckpoint,
          .seeds = CheckpointSeeds,
          .input_bytes_max = 4096,
          .mutations = 500};
}

}  // namespace cohort::fuzz
