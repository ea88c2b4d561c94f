#include <google/protobuf/stubs/logging.h>

#include <string>
#include <vector>

#include "cohort/v1/checkpoint.pb.h"
#include "common/formats/checkpoint_files.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/coordinator.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/memory_file_system.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

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
  // In its manifest.
  std::string State() {
    return DecodeCheckpointManifest(name_, Read(kCheckpointManifest))->state;
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

// Any state in the manifest, under a checksum that is right.
void CheckState(Written& written, const std::string& state) {
  const std::string manifest = written.Read(kCheckpointManifest);
  absl::StatusOr<CheckpointManifest> read =
      DecodeCheckpointManifest("manifest", manifest);
  COHORT_CHECK(read.ok(), read.status().ToString());
  read->state = state;
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

// The input is a state, or fields that are added to that of a whole
// checkpoint: protobuf takes the last of each.
void RunCheckpoint(absl::string_view input) {
  // Protobuf prints a line for each text that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  static Written& plain = *new Written(ExampleState(7));
  static Written& program = *new Written(ProgramState(7));
  Reader reader(input);
  const int32_t kind = reader.Below(5);
  Written& written = kind == 1 ? program : plain;
  const absl::string_view rest = reader.Rest();
  if (kind < 2) return CheckState(written, written.State() + Text(rest));
  if (kind == 4) return CheckState(written, Text(rest));
  CheckDamage(written, kind == 2 ? kCheckpointManifest : kCheckpointTensors,
              rest);
}

std::vector<std::string> CheckpointSeeds() {
  v1::RunState change;
  change.set_cursor(3);
  change.set_ended("done");
  change.add_reissue()->set_end(1);
  (*change.mutable_settings())["epochs"] = "4";
  std::vector<std::string> seeds;
  for (char kind = 0; kind < 2; ++kind) {
    Written written(kind == 0 ? ExampleState(7) : ProgramState(7));
    seeds.push_back(std::string(1, kind) + change.SerializeAsString());
    seeds.push_back("\x04" + written.State());
    if (kind == 0) {
      seeds.push_back("\x02" + written.Read(kCheckpointManifest));
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
