#include "common/log/log_limiter.h"

#include "absl/strings/ascii.h"

namespace cohort {
namespace {

// Longer prefixes would only cost memory.
constexpr size_t kKindLengthMax = 96;

// The text with each number replaced by '#'.
std::string KindOf(absl::string_view text) {
  std::string kind;
  for (const char c : text.substr(0, kKindLengthMax)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      kind.push_back(c);
    } else if (kind.empty() || kind.back() != '#') {
      kind.push_back('#');
    }
  }
  return kind;
}

}  // namespace

bool LogLimiter::Admit(absl::string_view text, Instant now) {
  std::string name = KindOf(text);
  if (kinds_.size() >= kKindsMax && !kinds_.contains(name)) name.clear();
  const auto [at, is_new] = kinds_.try_emplace(name, Kind{.begin = now});
  Kind& kind = at->second;
  if (++kind.lines <= kLinesMax) return true;
  kind.last_text = std::string(text.substr(0, kKindLengthMax));
  return false;
}

std::vector<LogLimiter::Suppressed> LogLimiter::TakeEnded(Instant now) {
  std::vector<Suppressed> told;
  for (auto at = kinds_.begin(); at != kinds_.end();) {
    if (now - at->second.begin < kInterval) {
      ++at;
      continue;
    }
    Tell(at->second, told);
    at = kinds_.erase(at);
  }
  return told;
}

std::vector<LogLimiter::Suppressed> LogLimiter::TakeAll() {
  std::vector<Suppressed> told;
  for (const auto& [name, kind] : kinds_) Tell(kind, told);
  kinds_.clear();
  return told;
}

void LogLimiter::Tell(const Kind& kind, std::vector<Suppressed>& told) {
  if (kind.lines <= kLinesMax) return;
  told.push_back({.lines = kind.lines - kLinesMax, .text = kind.last_text});
}

}  // namespace cohort
