#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/build_info.h"
#include "common/cli/environment.h"
#include "common/ops/page_client.h"
#include "common/status_macros.h"
#include "server/ctl/byte_count.h"
#include "server/ctl/doctor/server_checks.h"
#include "server/ctl/json_line.h"
#include "server/ctl/support/bundle.h"
#include "server/ctl/support/redact.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kBundleDefault = "cohort-support.tar.gz";
// Limit for each query, because there are many and the server may be stuck.
constexpr absl::Duration kAnswerMax = absl::Seconds(5);
// Small enough to send to people, and hours of most logs.
constexpr int64_t kLogBytesMax = int64_t{1} << 20;
constexpr int kOk = 200;

std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// A verb whose output becomes a part.
struct Question {
  const char* name;
  const char* about;
  const char* verb;
  // A flag without which the question is skipped, and the verb's name for it.
  const char* needs = nullptr;
  const char* passed_as = nullptr;
  bool of_server = true;
};

constexpr Question kQuestions[] = {
    {"status.json", "state, progress and workers of the run", "status"},
    {"policy.json", "the settings in force", "policy get"},
    {"policy-history.json", "all changes of the settings", "policy history"},
    {"workers.json", "ranks, workers and phases of steps", "workers list"},
    {"doctor.json", "what cohortctl doctor finds", "doctor", nullptr, nullptr,
     false},
    {"checkpoints.json", "the checkpoints of --checkpoint_dir, by name",
     "checkpoint list", "checkpoint_dir", "dir", false}};

class Gatherer {
 public:
  explicit Gatherer(Context& context)
      : context_(context),
        timeout_(std::min(context.timeout, kAnswerMax)),
        server_(context.server.target(), timeout_) {}

  // Errors: Cancelled at Ctrl-C.
  absl::StatusOr<std::vector<BundlePart>> Gather() {
    Add("version.txt", "version of the cohortctl that made this bundle",
        VersionText("cohortctl") + "\n");
    Add("environment.txt", "COHORT_* variables of its environment",
        RedactedVariables(Environment()));
    for (const Question& question : kQuestions) {
      COHORT_RETURN_IF_ERROR(Interrupted());
      Ask(question);
    }
    COHORT_RETURN_IF_ERROR(Interrupted());
    AddMetrics();
    if (const auto results = context_.arguments.Value("results_dir")) {
      AddFile("history.csv", "loss and scores over the run, from --results_dir",
              absl::StrCat(*results, "/history.csv"));
    }
    for (const std::string& log : context_.words) {
      COHORT_RETURN_IF_ERROR(Interrupted());
      AddFile(LogName(log), "end of the log, up to 1 MiB", log);
    }
    parts_.insert(parts_.begin(),
                  {.name = "contents.txt", .about = "this list"});
    parts_.front().content = ContentsText(parts_);
    return std::move(parts_);
  }

 private:
  absl::Status Interrupted() {
    if (context_.io.pause(absl::ZeroDuration())) return absl::OkStatus();
    return absl::CancelledError("interrupted; nothing was written");
  }

  void Add(const std::string& name, const std::string& about,
           std::string content) {
    // A log may show the token that this cohortctl presents.
    const std::string token =
        TokenOf(context_.server.target()).value_or(std::string());
    if (!token.empty()) {
      content = absl::StrReplaceAll(content, {{token, "[redacted]"}});
    }
    parts_.push_back(
        {.name = name, .about = about, .content = std::move(content)});
  }

  void AddMissing(const std::string& name, const std::string& why) {
    parts_.push_back({.name = name, .problem = Printable(FirstLine(why))});
  }

  void AddFile(const std::string& name, const std::string& about,
               const std::string& path) {
    const absl::StatusOr<std::string> text = EndOfFile(path, kLogBytesMax);
    if (!text.ok()) {
      return AddMissing(name, std::string(text.status().message()));
    }
    const std::string secret = SecretIn(*text);
    if (!secret.empty()) return AddMissing(name, secret);
    Add(name, about, Redacted(*text));
  }

  // The log's own name, with a number in front if that name is taken.
  std::string LogName(const std::string& path) {
    const std::string file = std::filesystem::path(path).filename().string();
    const int count = ++logs_[file];
    return count == 1 ? absl::StrCat("logs/", file)
                      : absl::StrCat("logs/", count, "-", file);
  }

  void Ask(const Question& question) {
    Arguments arguments = context_.arguments;
    if (question.needs != nullptr) {
      const auto value = context_.arguments.Value(question.needs);
      if (!value.has_value()) return;
      arguments.flags[question.passed_as] = *value;
    }
    if (question.of_server && !unreachable_.empty()) {
      return AddMissing(question.name, unreachable_);
    }
    std::ostringstream answer;
    std::ostream nowhere(nullptr);
    CtlIo io{.out = answer,
             .err = nowhere,
             .clock = context_.io.clock,
             .program = context_.io.program,
             .pause = context_.io.pause};
    Context asked{.server = server_,
                  .arguments = arguments,
                  .timeout = timeout_,
                  .json = true,
                  .io = io};
    const absl::Status status = VerbNamed(question.verb).run(asked);
    if (!status.ok()) {
      if (absl::IsUnavailable(status)) {
        unreachable_ = FirstLine(status.message());
      }
      return AddMissing(question.name, std::string(status.message()));
    }
    const Json json =
        Json::parse(answer.str(), nullptr, /*allow_exceptions=*/false);
    Add(question.name, question.about,
        Redacted(
            json.is_discarded()
                ? answer.str()
                : json.dump(1, ' ', false, Json::error_handler_t::replace) +
                      "\n"));
  }

  void AddMetrics() {
    const absl::StatusOr<v1::Status> status =
        unreachable_.empty() ? server_.GetStatus()
                             : absl::StatusOr<v1::Status>(v1::Status());
    const std::string ops =
        OpsAddressOf(context_.arguments.Value("ops"), context_.server.server(),
                     status.ok() ? *status : v1::Status())
            .address;
    if (ops.empty()) {
      return AddMissing("metrics.txt", "the server has no operations port");
    }
    const ServerTarget& target = context_.server.target();
    const absl::StatusOr<Page> page =
        FetchPage({.address = ops,
                   .path = "/metrics",
                   .timeout = timeout_,
                   .tls = target.tls,
                   .token = TokenOf(target).value_or("")});
    if (!page.ok()) {
      return AddMissing("metrics.txt", std::string(page.status().message()));
    }
    if (page->status != kOk) {
      return AddMissing("metrics.txt",
                        absl::StrCat(ops, ": HTTP status ", page->status));
    }
    Add("metrics.txt", absl::StrCat("/metrics of ", ops), page->body);
  }

  Context& context_;
  const absl::Duration timeout_;
  AdminClient server_;
  std::vector<BundlePart> parts_;
  std::map<std::string, int> logs_;
  // Why the server gave no answer; empty if it answered.
  std::string unreachable_;
};

std::string PartsJson(const std::string& out, int64_t bytes,
                      const std::vector<BundlePart>& parts) {
  Json list = Json::array();
  for (const BundlePart& part : parts) {
    const bool there = part.problem.empty();
    list.push_back({{"name", part.name},
                    {"bytes", there ? Json(part.content.size()) : Json()},
                    {"problem", there ? Json() : Json(part.problem)}});
  }
  return JsonLine({{"out", out}, {"bytes", bytes}, {"parts", list}});
}

absl::Status RunSupportBundle(Context& context) {
  const std::string out =
      context.arguments.Value("out").value_or(std::string(kBundleDefault));
  COHORT_ASSIGN_OR_RETURN(const std::vector<BundlePart> parts,
                          Gatherer(context).Gather());
  COHORT_ASSIGN_OR_RETURN(const int64_t bytes, WriteBundle(out, parts));
  if (context.json) {
    context.io.out << PartsJson(out, bytes, parts);
    return absl::OkStatus();
  }
  Table table({"part", "size", "what it is"});
  for (const BundlePart& part : parts) {
    const bool there = part.problem.empty();
    table.Add({Printable(part.name),
               there ? ByteCountText(static_cast<int64_t>(part.content.size()))
                     : "missing",
               there ? part.about : part.problem});
  }
  context.io.out << table.ToString(context.io.color) << out << ": "
                 << ByteCountText(bytes) << "\n";
  context.io.err << "check its logs before you share it: secrets are "
                    "recognised by their names only"
                 << std::endl;
  return absl::OkStatus();
}

}  // namespace

Verb SupportBundleVerb() {
  return {.name = "support-bundle",
          .summary = "packs state, settings, metrics and logs for a bug report",
          .words = "[LOG...]",
          .flags = {{"out", "FILE",
                     "file for the bundle (default cohort-support.tar.gz)"},
                    {"ops", "HOST:PORT",
                     "operations port of the server, for its metrics (default: "
                     "the one that it reports)"},
                    {"results_dir", "DIR",
                     "the server's --results_dir, for its history.csv"},
                    {"checkpoint_dir", "DIR",
                     "the server's --checkpoint_dir; its checkpoints are "
                     "listed, not packed"}},
          .examples = {"cohortctl support-bundle",
                       "cohortctl support-bundle server.log worker-0.log "
                       "--out=friday.tar.gz --results_dir=results "
                       "--checkpoint_dir=state"},
          .run = &RunSupportBundle};
}

}  // namespace cohort
