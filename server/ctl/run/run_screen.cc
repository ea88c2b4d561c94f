#include "server/ctl/run/run_screen.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

// Enough lines to see why a worker died.
constexpr size_t kLastLines = 8;

// Terminal colours that differ clearly on dark and light backgrounds; the
// server's is bold.
constexpr absl::string_view kServerColor = "\x1b[1m";
constexpr std::array<absl::string_view, 6> kWorkerColors = {
    "\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m"};
constexpr absl::string_view kNoColor = "\x1b[0m";

// A field of a log line; empty if it is absent.
std::string Field(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

// Whether the server will soon write a newer line in place of this one.
bool IsProgress(absl::string_view line) {
  return absl::StartsWith(line, "step ") ||
         absl::StartsWith(line, "waiting for ");
}

}  // namespace

std::string LogLineText(absl::string_view line) {
  if (!absl::StartsWith(line, "{\"time\":")) return Printable(line);
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const std::string message = json.is_object() ? Field(json, "message") : "";
  if (message.empty()) return Printable(line);
  const std::string level = Field(json, "level");
  return Printable(level == "warning" || level == "error"
                       ? absl::StrCat(level, ": ", message)
                       : message);
}

RunScreen::RunScreen(CtlIo& io, bool json, std::string log_dir, int32_t workers)
    : io_(io),
      json_(json),
      log_dir_(std::move(log_dir)),
      name_width_(ClusterProcess::Worker(workers - 1).Name().size()),
      progress_(io.out) {}

absl::Status RunScreen::OpenLogs() {
  if (log_dir_.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(log_dir_, error);
  if (!error) {
    logs_[{}].open(LogPath({}), std::ios::app);
    if (logs_[{}].is_open()) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "--log_dir=", log_dir_, ": cannot be written",
      error ? absl::StrCat(" (", error.message(), ")") : std::string(),
      "\nName a folder that can, or leave it out"));
}

std::string RunScreen::LogPath(const ClusterProcess& process) const {
  return absl::StrCat(log_dir_, "/", process.LogName());
}

std::string RunScreen::Prefix(const ClusterProcess& process) const {
  const std::string name = process.Name();
  const std::string mark = absl::StrCat("[", name, "]");
  const std::string gap(name_width_ - std::min(name_width_, name.size()) + 1,
                        ' ');
  if (!io_.color) return absl::StrCat(mark, gap);
  const absl::string_view color =
      process.is_worker() ? kWorkerColors[static_cast<size_t>(process.number) %
                                          kWorkerColors.size()]
                          : kServerColor;
  return absl::StrCat(color, mark, kNoColor, gap);
}

void RunScreen::ShowLine(const ClusterProcess& process,
                         absl::string_view line) {
  if (!log_dir_.empty()) {
    std::ofstream& log = logs_[process];
    if (!log.is_open()) log.open(LogPath(process), std::ios::app);
    log << line << std::endl;
  }
  if (!shown(process)) {
    std::deque<std::string>& last = last_lines_[process];
    last.push_back(LogLineText(line));
    if (last.size() > kLastLines) last.pop_front();
    return;
  }
  if (json_) {
    io_.out << JsonLine(
                   {{"process", process.Name()}, {"line", std::string(line)}})
            << std::flush;
    return;
  }
  if (io_.terminal && process.is_server() && IsProgress(line)) {
    return progress_.Show(Printable(line), io_.screen().columns);
  }
  progress_.Clear();
  io_.out << (log_dir_.empty() ? Prefix(process) : "") << LogLineText(line)
          << std::endl;
}

void RunScreen::ShowStart(const ClusterProcess& process, pid_t pid) {
  // These lines are from the last incarnation of this rank.
  last_lines_.erase(process);
  if (json_) {
    io_.out << JsonLine({{"event", "started"},
                         {"process", process.Name()},
                         {"pid", pid}})
            << std::flush;
    return;
  }
  Say(absl::StrCat(process.Name(), " is process ", pid,
                   log_dir_.empty() ? "" : ", log ",
                   log_dir_.empty() ? "" : LogPath(process)));
}

void RunScreen::RecordEnd(const ClusterProcess& process,
                          const ProcessEnd& end) {
  if (!json_) return;
  io_.out << JsonLine({{"event", "ended"},
                       {"process", process.Name()},
                       {"exit_code", end.code},
                       {"signal", end.signal == 0 ? Json() : Json(end.signal)}})
          << std::flush;
}

void RunScreen::ShowEnd(const ClusterProcess& process, const ProcessEnd& end,
                        absl::string_view consequence) {
  Say(absl::StrCat(process.Name(), " ", end.Text(),
                   consequence.empty() ? "" : ": ", consequence));
  if (shown(process) || json_) return;
  const std::deque<std::string>& last = last_lines_[process];
  if (last.empty()) return Say(absl::StrCat(process.Name(), " wrote nothing"));
  Say(absl::StrCat("the last lines of ", process.Name(), ":"));
  for (const std::string& line : last) io_.err << "    " << line << "\n";
  io_.err << std::flush;
}

void RunScreen::Say(absl::string_view text) {
  if (json_) {
    io_.out << JsonLine({{"event", "message"}, {"text", std::string(text)}})
            << std::flush;
    return;
  }
  progress_.Clear();
  io_.err << "run: " << text << std::endl;
}

}  // namespace cohort
