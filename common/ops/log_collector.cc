#include "common/ops/log_collector.h"

#include <string>

#include "common/log/log.h"

namespace cohort {

MetricFamilies LogFamilies() {
  prometheus::MetricFamily family = CounterFamily(
      "cohort_log_messages_total", "Log messages of this process, by level.");
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo,
                               LogLevel::kWarning, LogLevel::kError}) {
    AddValue(family, static_cast<double>(LogMessageCount(level)),
             {{.name = "level", .value = std::string(LogLevelName(level))}});
  }
  return {family};
}

}  // namespace cohort
