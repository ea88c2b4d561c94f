#include <stdlib.h>

#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/dns_label.h"
#include "common/formats/file_system.h"
#include "common/security/authority.h"
#include "common/security/identity.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/programs.h"
#include "server/ctl/run/cluster_run.h"
#include "server/ctl/run/run_screen.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::string_view kAsyncExample =
    "cohortctl run --workers=4 --aggregation=async --epochs=3 --model=resnet20 "
    "--batch_size=32";

constexpr int32_t kWorkersDefault = 2;
// More do not fit on one machine.
constexpr int32_t kWorkersMax = 999;
constexpr int32_t kShardsMax = 64;
constexpr int32_t kRestartsDefault = 3;
constexpr int32_t kRestartsMax = 1'000'000;
constexpr char kRunDefault[] = "local";
constexpr absl::Duration kCertificateLife = absl::Hours(24 * 90);
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365);

// The flags among `wanted`, as typed.
std::vector<std::string> Typed(
    const Arguments& arguments,
    const std::map<std::string, std::string>& wanted) {
  std::vector<std::string> flags;
  for (const GivenFlag& given : arguments.given) {
    if (!wanted.contains(given.name)) continue;
    flags.insert(flags.end(), given.typed.begin(), given.typed.end());
  }
  return flags;
}

// The command line that continues this run from its checkpoints.
std::string ResumeCommand(const Context& context) {
  if (!context.settings.contains("checkpoint_dir")) return "";
  std::string command = absl::StrCat(context.io.program, " run");
  for (const GivenFlag& given : context.arguments.given) {
    if (given.name == "resume") continue;
    for (const std::string& word : given.typed) {
      absl::StrAppend(&command, " ", ShellWord(word));
    }
  }
  absl::StrAppend(&command, " --resume");
  if (!context.arguments.rest.has_value()) return command;
  absl::StrAppend(&command, " --");
  for (const std::string& word : *context.arguments.rest) {
    absl::StrAppend(&command, " ", ShellWord(word));
  }
  return command;
}

// Reads --workers=N and --workers=MIN:MAX.
// Errors: InvalidArgument.
absl::Status ReadWorkers(const Arguments& arguments, ClusterSpec& spec) {
  const std::string text =
      arguments.Value("workers").value_or(absl::StrCat(kWorkersDefault));
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  int32_t least = 0;
  if (ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &least) &&
      absl::SimpleAtoi(ends.back(), &spec.workers) && least >= 1 &&
      least <= spec.workers && spec.workers <= kWorkersMax) {
    spec.workers_min = ends.size() == 2 ? least : 0;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--workers: got '", text, "', want 1 to ", kWorkersMax, ", or MIN:MAX"));
}

absl::StatusOr<ClusterRunOptions> RunOptionsOf(const Context& context) {
  ClusterRunOptions options;
  const Arguments& arguments = context.arguments;
  COHORT_RETURN_IF_ERROR(ReadWorkers(arguments, options.spec));
  COHORT_ASSIGN_OR_RETURN(options.max_restarts,
                          NumberOf(arguments, "max_restarts", kRestartsDefault,
                                   {.min = 0, .max = kRestartsMax}));
  COHORT_ASSIGN_OR_RETURN(
      options.spec.shards,
      NumberOf(arguments, "shards", 1, {.min = 1, .max = kShardsMax}));
  if (options.spec.shards > 1 && !context.settings.contains("checkpoint_dir")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shards: got ", options.spec.shards,
        ", want --checkpoint_dir=DIR too: after the loss of a shard all "
        "continue from the newest checkpoint"));
  }
  options.spec.server_flags = Typed(arguments, context.settings);
  options.spec.worker_flags = Typed(arguments, context.worker_flags);
  const std::vector<std::string> rest =
      arguments.rest.value_or(std::vector<std::string>());
  const bool own_program = !rest.empty() && !absl::StartsWith(rest[0], "-");
  std::vector<std::string>& behind =
      own_program ? options.spec.worker_command : options.spec.worker_flags;
  behind.insert(behind.end(), rest.begin(), rest.end());
  COHORT_ASSIGN_OR_RETURN(
      options.spec.programs,
      FindPrograms(
          arguments.Value("programs").value_or(""),
          own_program ? WorkerProgram::kOther : WorkerProgram::kCohortWorker));
  const auto loss = context.settings.find("on_worker_loss");
  if (loss != context.settings.end()) options.on_worker_loss = loss->second;
  options.resume_command = ResumeCommand(context);
  return options;
}

// Makes certificates for all processes in `folder`, by the authority that is
// there or a new one.
absl::StatusOr<ClusterCertificates> MakeCertificates(const std::string& folder,
                                                     const std::string& run,
                                                     int32_t workers) {
  FileSystem& files = RealFileSystem();
  absl::StatusOr<Authority> authority = Authority::Open(files, folder);
  if (absl::IsFailedPrecondition(authority.status())) {
    authority = Authority::Create(files, folder, "localhost", kAuthorityLife);
  }
  COHORT_RETURN_IF_ERROR(authority.status());
  const auto identity = [&](PeerRole role, std::optional<int32_t> number) {
    return Identity{.domain = authority->domain(),
                    .run = run,
                    .role = role,
                    .number = number};
  };
  std::vector<Identity> all = {identity(PeerRole::kServer, 0),
                               identity(PeerRole::kOperator, {}),
                               identity(PeerRole::kViewer, {})};
  for (int32_t rank = 0; rank < workers; ++rank) {
    all.push_back(identity(PeerRole::kWorker, rank));
  }
  // All are checked before the first is written.
  for (const Identity& one : all) {
    COHORT_RETURN_IF_ERROR(WithNext(
        authority->CheckFree(one), absl::StatusCode::kFailedPrecondition,
        "Use another folder for --tls, or --run_name of that run"));
  }
  ClusterCertificates made;
  for (const Identity& one : all) {
    COHORT_ASSIGN_OR_RETURN(const TlsFiles issued,
                            authority->Issue(one, kCertificateLife));
    if (one.role == PeerRole::kServer) made.server = issued;
    if (one.role == PeerRole::kOperator) made.client = issued;
    if (one.role == PeerRole::kWorker) made.workers.push_back(issued);
  }
  return made;
}

std::optional<std::string> TokensFlag(const Context& context) {
  const auto given = context.settings.find("viewer_tokens");
  if (given == context.settings.end()) return std::nullopt;
  return given->second;
}

absl::Status Encrypt(const Context& context, ClusterSpec& spec) {
  const std::optional<std::string> given_folder =
      context.arguments.Value("tls");
  if (!given_folder.has_value()) return absl::OkStatus();
  // The files are named to people in other folders too.
  std::error_code error;
  const std::filesystem::path whole =
      std::filesystem::absolute(*given_folder, error);
  const std::string folder = error ? *given_folder : whole.string();
  const auto given = context.settings.find("run_name");
  const std::string run =
      given == context.settings.end() ? kRunDefault : given->second;
  COHORT_RETURN_IF_ERROR(CheckDnsLabel("--run_name", run));
  COHORT_ASSIGN_OR_RETURN(spec.certificates,
                          MakeCertificates(folder, run, spec.workers));
  const std::optional<std::string> tokens = TokensFlag(context);
  const std::string file = tokens.value_or(folder + "/viewer_tokens");
  context.io.err << "certificates are in " << folder
                 << "\nfor the page in a browser: " << context.io.program
                 << " certs token --name=NAME --tokens=" << ShellWord(file)
                 << (tokens.has_value()
                         ? ""
                         : absl::StrCat(
                               ", and start this with --viewer_tokens=",
                               ShellWord(file)))
                 << "; the token is the password, with any name" << std::endl;
  return absl::OkStatus();
}

absl::Status RunCluster(Context& context) {
  COHORT_ASSIGN_OR_RETURN(ClusterRunOptions options, RunOptionsOf(context));
  COHORT_RETURN_IF_ERROR(Encrypt(context, options.spec));
  // An operator's own certificate is not one for the children, which would read
  // these variables.
  for (const char* variable :
       {"COHORT_TLS_CERT", "COHORT_TLS_KEY", "COHORT_TLS_CA"}) {
    unsetenv(variable);
  }
  RunScreen screen(context.io, context.json,
                   context.arguments.Value("log_dir").value_or(""),
                   options.spec.workers);
  COHORT_RETURN_IF_ERROR(screen.OpenLogs());
  ClusterRun run(std::move(options), screen, context.io);
  COHORT_ASSIGN_OR_RETURN(context.exit_code, run.Run());
  return absl::OkStatus();
}

}  // namespace

Verb RunVerb() {
  return {
      .name = "run",
      .summary = "trains on this machine with a server and its workers",
      .flags =
          {{"workers", "N",
            "number of workers (default 2); MIN:MAX: an elastic cohort, "
            "started with MAX"},
           {"shards", "N",
            "server processes that share the model (default 1); more need "
            "--checkpoint_dir"},
           {"max_restarts", "N",
            "how often a worker or data shard that dies is restarted without a "
            "step in between (default 3)"},
           {"log_dir", "DIR",
            "folder for server.log and worker-N.log; the screen then shows "
            "only the server"},
           {"tls", "DIR",
            "encrypt: creates certificates in this folder, with its authority "
            "or a new one, and renews those of the same --run_name"},
           {"programs", "DIR",
            "folder of cohort-server and cohort-worker (default: that of "
            "cohortctl)"}},
      .takes_program_flags = true,
      .rest = "FLAGS OF THE WORKERS, OR A PROGRAM",
      .contacts = Contacts::kNothing,
      .examples = {"cohortctl run --workers=4", kAsyncExample,
                   "cohortctl run --checkpoint_dir=state --resume",
                   "cohortctl run --workers=4 --tls=certs",
                   "cohortctl run --workers=4 --epochs=3 -- python3 train.py"},
      .run = &RunCluster};
}

}  // namespace cohort
