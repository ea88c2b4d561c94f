#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace cohort {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

// Everything that log lines share. One object for the process, because log
// lines come from everywhere; never destroyed, because they come until the
// last moment.
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

  void Write(LogLevel level, absl::string_view text,
             std::initializer_list<LogField> fields) {
    if (!sink_->should_log(Spd(level))) return;
    std::string line;
    {
      MutexLock lock(mu_);
      line = json_ ? Json(level, text, fields) : Human(level, text, fields);
    }
    sink_->log(Spd(level), "{}", line);
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

  static const char* Name(LogLevel level) {
    switch (level) {
      case LogLevel::kDebug:
        return "debug";
      case LogLevel::kInfo:
        return "info";
      case LogLevel::kWarning:
        return "warning";
      case LogLevel::kError:
        return "error";
    }
    return "info";
  }

  static Fields Copy(std::initializer_list<LogField> fields) {
    Fields copy;
    for (const LogField& f : fields) {
      copy.emplace_back(std::string(f.key), f.value);
    }
    return copy;
  }

  static std::string Printable(absl::string_view text) {
    std::string out;
    for (char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        absl::StrAppend(&out, "\\x", absl::Hex(byte, absl::kZeroPad2));
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  std::string Human(LogLevel level, absl::string_view text,
                    std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string line =
        absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone());
    absl::StrAppend(&line, " ", process_, " ", Name(level), ": ",
                    Printable(text));
    for (const auto& [key, value] : context_) {
      absl::StrAppend(&line, " ", key, "=", Printable(value));
    }
    for (const LogField& f : fields) {
      absl::StrAppend(&line, " ", f.key, "=", Printable(f.value));
    }
    return line;
  }

  std::string Json(LogLevel level, absl::string_view text,
                   std::initializer_list<LogField> fields) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    nlohmann::ordered_json line;
    line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                                    absl::UTCTimeZone());
    line["level"] = Name(level);
    line["process"] = process_;
    line["message"] = std::string(text);
    for (const auto& [key, value] : context_) line[key] = value;
    for (const LogField& f : fields) line[std::string(f.key)] = f.value;
    return line.dump(-1, ' ', false,
                     nlohmann::ordered_json::error_handler_t::replace);
  }

  const std::shared_ptr<spdlog::logger> sink_;
  Mutex mu_;
  bool json_ ABSL_GUARDED_BY(mu_) = false;
  std::string process_ ABSL_GUARDED_BY(mu_) = "cohort";
  Fields context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void InitLogging(const LogOptions& options) { Logger::Get().Init(options); }

void SetLogContext(std::initializer_list<LogField> fields) {
  Logger::Get().SetContext(fields);
}

void SetLogLevel(LogLevel level) { Logger::Get().SetLevel(level); }

void Log(LogLevel level, absl::string_view text,
         std::initializer_list<LogField> fields) {
  Logger::Get().Write(level, text, fields);
}

}  // namespace cohort
