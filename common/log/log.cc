#include "common/log/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/incarnation_text.h"
#include "common/log/log_limiter.h"
#include "common/mutex.h"
#include "common/printable.h"

namespace cohort {
namespace {

using Fields = std::vector<LogField>;

constexpr std::array<LogLevel, 4> kLevels = {
    LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError};

// State shared by all log lines. There is one object for the process, because
// lines are logged from everywhere; it is never destroyed, because they are
// logged until the end.
class Logger {
 public:
  static Logger& Get() {
    static auto* logger = new Logger;
    return *logger;
  }

  void Init(const LogOptions& options) {
    MutexLock lock(mu_);
    json_ = options.format == LogFormat::kJson ||
            (options.format == LogFormat::kAuto && isatty(STDERR_FILENO) == 0);
    process_ = options.process;
    SetLevel(options.level);
  }

  void SetContext(std::initializer_list<LogField> fields) {
    MutexLock lock(mu_);
    context_ = fields;
  }

  void SetLevel(LogLevel level) {
    level_.store(level, std::memory_order_relaxed);
  }

  LogLevel level() const { return level_.load(std::memory_order_relaxed); }

  void SetVersion(int64_t version) {
    version_.store(version, std::memory_order_relaxed);
  }

  int64_t count(LogLevel level) const {
    return counts_[static_cast<size_t>(level)].load(std::memory_order_relaxed);
  }

  void Write(LogLevel level, absl::string_view text,
             std::initializer_list<LogField> fields) {
    if (level < this->level()) return;
    counts_[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
    std::vector<std::string> lines;
    {
      MutexLock lock(mu_);
      const Instant now = clock_.Now();
      TellSuppressed(limiter_.TakeEnded(now), lines);
      if (limiter_.Admit(text, now)) lines.push_back(Line(level, text, fields));
    }
    Print(lines);
  }

  void Flush() {
    std::vector<std::string> lines;
    {
      MutexLock lock(mu_);
      TellSuppressed(limiter_.TakeAll(), lines);
    }
    Print(lines);
  }

 private:
  // One write a line, so that the lines of several threads do not mix.
  static void Print(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  }

  void TellSuppressed(const std::vector<LogLimiter::Suppressed>& suppressed,
                      std::vector<std::string>& lines) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const LogLimiter::Suppressed& of : suppressed) {
      lines.push_back(Line(
          LogLevel::kWarning,
          absl::StrCat(of.lines, " similar lines were suppressed: ", of.text),
          {}));
    }
  }

  // The fields of every line, then those of this line, which win.
  Fields AllOf(std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Fields all = context_;
    const int64_t version = version_.load(std::memory_order_relaxed);
    if (version >= 0) {
      all.push_back({.key = "version", .value = absl::StrCat(version)});
    }
    std::erase_if(all, [&fields](const LogField& entry) {
      return std::any_of(
          fields.begin(), fields.end(),
          [&entry](const LogField& f) { return f.key == entry.key; });
    });
    all.insert(all.end(), fields);
    return all;
  }

  std::string Line(LogLevel level, absl::string_view text,
                   std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (json_ ? Json(level, text, fields) : Human(level, text, fields)) +
           "\n";
  }

  std::string Human(LogLevel level, absl::string_view text,
                    std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string line =
        absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone());
    absl::StrAppend(&line, " ", process_, " ", LogLevelName(level), ": ",
                    Printable(text));
    for (const auto& [key, value, shown] : AllOf(fields)) {
      absl::StrAppend(&line, " ", key, "=",
                      Printable(shown.empty() ? value : shown));
    }
    return line;
  }

  std::string Json(LogLevel level, absl::string_view text,
                   std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    nlohmann::ordered_json line;
    line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                                    absl::UTCTimeZone());
    line["level"] = std::string(LogLevelName(level));
    line["process"] = process_;
    line["message"] = std::string(text);
    for (const auto& [key, value, shown] : AllOf(fields)) {
      line[std::string(key)] = value;
      if (!shown.empty()) line[absl::StrCat(key, "_text")] = shown;
    }
    return line.dump(-1, ' ', false,
                     nlohmann::ordered_json::error_handler_t::replace);
  }

  const SteadyClock clock_{};
  // No other data depends on these numbers, so relaxed order is enough.
  std::atomic<LogLevel> level_ = LogLevel::kInfo;
  std::atomic<int64_t> version_ = -1;
  std::array<std::atomic<int64_t>, kLevels.size()> counts_ = {};

  Mutex mu_;
  LogLimiter limiter_ ABSL_GUARDED_BY(mu_);
  bool json_ ABSL_GUARDED_BY(mu_) = false;
  std::string process_ ABSL_GUARDED_BY(mu_) = "cohort";
  Fields context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void InitLogging(const LogOptions& options) { Logger::Get().Init(options); }

void SetLogContext(std::initializer_list<LogField> fields) {
  Logger::Get().SetContext(fields);
}

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (const LogLevel level : kLevels) {
    if (LogLevelName(level) == name) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "got '", name.substr(0, 64), "', want debug, info, warning or error"));
}

LogField IncarnationField(Incarnation incarnation) {
  return {.key = "incarnation",
          .value = absl::StrCat(incarnation.value()),
          .text = IncarnationText(incarnation)};
}

void SetLogVersion(int64_t version) { Logger::Get().SetVersion(version); }

void SetLogLevel(LogLevel level) { Logger::Get().SetLevel(level); }

LogLevel CurrentLogLevel() { return Logger::Get().level(); }

int64_t LogMessageCount(LogLevel level) { return Logger::Get().count(level); }

void Log(LogLevel level, absl::string_view text,
         std::initializer_list<LogField> fields) {
  Logger::Get().Write(level, text, fields);
}

void FlushLog() { Logger::Get().Flush(); }

}  // namespace cohort
