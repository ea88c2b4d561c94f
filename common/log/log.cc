#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
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

struct Field {
  std::string key;
  std::string value;
  std::string text;
};
using Fields = std::vector<Field>;

Field Copied(const LogField& field) {
  return {
      .key = std::string(field.key), .value = field.value, .text = field.text};
}

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
    sink_->set_level(Spd(options.level));
  }

  void SetContext(std::initializer_list<LogField> fields) {
    MutexLock lock(mu_);
    context_ = Copy(fields);
  }

  void SetLevel(LogLevel level) { sink_->set_level(Spd(level)); }

  LogLevel level() const {
    for (const LogLevel level : kLevels) {
      if (sink_->should_log(Spd(level))) return level;
    }
    return LogLevel::kError;
  }

  void SetVersion(int64_t version) {
    version_.store(version, std::memory_order_relaxed);
  }

  int64_t count(LogLevel level) const {
    return counts_[static_cast<size_t>(level)].load(std::memory_order_relaxed);
  }

  void Write(LogLevel level, absl::string_view text,
             std::initializer_list<LogField> fields) {
    if (!sink_->should_log(Spd(level))) return;
    counts_[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
    std::vector<std::string> lines;
    {
      MutexLock lock(mu_);
      const Instant now = clock_.Now();
      TellSuppressed(limiter_.TakeEnded(now), lines);
      if (limiter_.Admit(text, now)) lines.push_back(Line(level, text, fields));
    }
    Print(level, lines);
  }

  void Flush() {
    std::vector<std::string> lines;
    {
      MutexLock lock(mu_);
      TellSuppressed(limiter_.TakeAll(), lines);
    }
    Print(LogLevel::kError, lines);
  }

 private:
  Logger()
      : sink_(std::make_shared<spdlog::logger>(
            "cohort", std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
    sink_->set_pattern("%v");
    sink_->flush_on(spdlog::level::debug);
  }

  static spdlog::level::level_enum Spd(LogLevel level) {
    switch (level) {
      case LogLevel::kDebug:
        return spdlog::level::debug;
      case LogLevel::kInfo:
        return spdlog::level::info;
      case LogLevel::kWarning:
        return spdlog::level::warn;
      case LogLevel::kError:
        return spdlog::level::err;
    }
    return spdlog::level::info;
  }

  static Fields Copy(std::initializer_list<LogField> fields) {
    Fields copy;
    for (const LogField& field : fields) copy.push_back(Copied(field));
    return copy;
  }

  void Print(LogLevel level, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) sink_->log(Spd(level), "{}", line);
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
    std::erase_if(all, [&fields](const Field& entry) {
      return std::any_of(
          fields.begin(), fields.end(),
          [&entry](const LogField& f) { return f.key == entry.key; });
    });
    for (const LogField& field : fields) all.push_back(Copied(field));
    return all;
  }

  std::string Line(LogLevel level, absl::string_view text,
                   std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return json_ ? Json(level, text, fields) : Human(level, text, fields);
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
      line[key] = value;
      if (!shown.empty()) line[key + "_text"] = shown;
    }
    return line.dump(-1, ' ', false,
                     nlohmann::ordered_json::error_handler_t::replace);
  }

  const SteadyClock clock_;
  const std::shared_ptr<spdlog::logger> sink_;
  // No other data depends on these numbers, so relaxed order is enough.
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
