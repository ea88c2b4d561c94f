#include "common/name_pattern.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {
namespace {

constexpr size_t kNearestMax = 3;

}  // namespace

bool MatchesPattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0;
  size_t n = 0;
  // Where to continue if the last star has to stand for one character more.
  size_t star = absl::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() &&
               (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string NearestNames(absl::string_view pattern, const ModelLayout& layout) {
  std::vector<std::pair<size_t, absl::string_view>> names;
  for (const ParameterSpec& parameter : layout.parameters) {
    names.emplace_back(EditDistance(pattern, parameter.name), parameter.name);
  }
  const size_t count = std::min(kNearestMax, names.size());
  std::partial_sort(names.begin(),
                    names.begin() + static_cast<std::ptrdiff_t>(count),
                    names.end());
  names.resize(count);
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
    absl::StrAppend(out, name.second);
  });
}

absl::Status CheckPatternsMatch(absl::string_view option,
                                const std::vector<std::string>& patterns,
                                const ModelLayout& layout) {
  for (const std::string& pattern : patterns) {
    const bool found =
        std::any_of(layout.parameters.begin(), layout.parameters.end(),
                    [&pattern](const ParameterSpec& parameter) {
                      return MatchesPattern(pattern, parameter.name);
                    });
    if (found) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--", option, ": got '", pattern,
                     "', want the name of a parameter or a pattern that "
                     "matches one; the nearest names are ",
                     NearestNames(pattern, layout)));
  }
  return absl::OkStatus();
}

}  // namespace cohort
