#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "server/core/settings/options.h"

// The kinds of settings that settings.cc lists. A field is a generic lambda
// from the options to the value: [](auto& o) -> auto& { return o.workers; }.
namespace cohort::setting_kinds {

using Options = CoordinatorOptions;

// One setting: its name, and how it is read from a text and printed.
struct Setting {
  absl::string_view name;
  // Returns what was wanted, or nothing if `value` was read.
  std::function<std::string(absl::string_view value, Options&)> read;
  std::function<std::string(const Options&)> print;
};

// The type of what `Field` returns a reference to: a generic lambda over
// options that may be changed or only read.
template <typename Field>
using ValueOf =
    std::remove_cvref_t<std::invoke_result_t<Field, CoordinatorOptions&>>;

inline std::string ParseNumber(absl::string_view text, double& value) {
  return absl::SimpleAtod(text, &value) && std::isfinite(value) ? ""
                                                                : "a number";
}
inline std::string ParseNumber(absl::string_view text, int64_t& value) {
  return absl::SimpleAtoi(text, &value) ? "" : "a whole number";
}
inline std::string ParseNumber(absl::string_view text, int32_t& value) {
  return absl::SimpleAtoi(text, &value) ? "" : "a whole number";
}
inline std::string ParseNumber(absl::string_view text, bool& value) {
  return absl::SimpleAtob(text, &value) ? "" : "true or false";
}
inline std::string ParseNumber(absl::string_view text, absl::Duration& value) {
  return absl::ParseDuration(text, &value) ? "" : "a duration such as 10s";
}

// Enough digits to read the same number back.
inline std::string PrintNumber(double value) {
  const std::string brief = absl::StrCat(value);
  double back = 0;
  if (absl::SimpleAtod(brief, &back) && back == value) return brief;
  return absl::StrFormat("%.17g", value);
}
inline std::string PrintNumber(int64_t value) { return absl::StrCat(value); }
inline std::string PrintNumber(int32_t value) { return absl::StrCat(value); }
inline std::string PrintNumber(bool value) { return value ? "true" : "false"; }
inline std::string PrintNumber(absl::Duration value) {
  return absl::FormatDuration(value);
}

// A number, a duration, or true or false.
template <typename Field>
Setting Number(absl::string_view name, Field field) {
  using T = ValueOf<Field>;
  return {.name = name,
          .read =
              [field](absl::string_view text, Options& options) {
                T value{};
                std::string wanted = ParseNumber(text, value);
                if (wanted.empty()) field(options) = value;
                return wanted;
              },
          .print =
              [field](const Options& options) {
                return PrintNumber(field(options));
              }};
}

template <typename T>
using Names = std::vector<std::pair<absl::string_view, T>>;

template <typename T>
std::string ListOf(const Names<T>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
    absl::StrAppend(out, name.first);
  });
}

template <typename T>
const T* Find(const Names<T>& names, absl::string_view text) {
  for (const auto& [name, value] : names) {
    if (name == text) return &value;
  }
  return nullptr;
}

template <typename T>
absl::string_view NameOf(const Names<T>& names, T value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "";
}

// One of `names`.
template <typename T, typename Field>
Setting Choice(absl::string_view name, Names<T> names, Field field) {
  return {.name = name,
          .read = [names, field](absl::string_view text,
                                 Options& options) -> std::string {
            const T* value = Find(names, text);
            if (value == nullptr) {
              return absl::StrCat("one of ", ListOf(names));
            }
            field(options) = *value;
            return "";
          },
          .print =
              [names, field](const Options& options) {
                return std::string(NameOf(names, field(options)));
              }};
}

// Several of `names`, separated by commas; none: "auto".
template <typename T, typename Field>
Setting Choices(absl::string_view name, Names<T> names, Field field) {
  return {.name = name,
          .read = [names, field](absl::string_view text,
                                 Options& options) -> std::string {
            std::vector<T> values;
            const std::vector<absl::string_view> parts = absl::StrSplit(
                text == "auto" ? "" : text, ',', absl::SkipEmpty());
            for (absl::string_view part : parts) {
              const T* value = Find(names, part);
              if (value == nullptr) {
                return absl::StrCat("auto, or a list of ", ListOf(names));
              }
              values.push_back(*value);
            }
            field(options) = std::move(values);
            return "";
          },
          .print =
              [names, field](const Options& options) {
                if (field(options).empty()) return std::string("auto");
                return absl::StrJoin(
                    field(options), ",", [&names](std::string* out, T value) {
                      absl::StrAppend(out, NameOf(names, value));
                    });
              }};
}

// A number that may be absent: "auto".
template <typename Field>
Setting OptionalNumber(absl::string_view name, Field field) {
  return {
      .name = name,
      .read = [field](absl::string_view text, Options& options) -> std::string {
        int64_t value = 0;
        if (text == "auto") {
          field(options).reset();
        } else if (absl::SimpleAtoi(text, &value)) {
          field(options) = value;
        } else {
          return "auto or a whole number";
        }
        return "";
      },
      .print =
          [field](const Options& options) {
            const std::optional<int64_t>& value = field(options);
            return value.has_value() ? absl::StrCat(*value) : "auto";
          }};
}

// The samples of a step: a number, or "sum".
inline Setting GlobalBatch(absl::string_view name) {
  return {.name = name,
          .read = [](absl::string_view text, Options& options) -> std::string {
            int64_t samples = 0;
            if (text != "sum" &&
                (!absl::SimpleAtoi(text, &samples) || samples < 1)) {
              return "sum or a whole number, 1 or more";
            }
            options.policy.global_batch = samples;
            return "";
          },
          .print =
              [](const Options& options) {
                return options.policy.global_batch == 0
                           ? std::string("sum")
                           : absl::StrCat(options.policy.global_batch);
              }};
}

// The size of the cohort: "4", or "2:8" if it is elastic.
inline Setting CohortSize(absl::string_view name) {
  return {.name = name,
          .read = [](absl::string_view text, Options& options) -> std::string {
            const std::pair<absl::string_view, absl::string_view> ends =
                absl::StrSplit(text, absl::MaxSplits(':', 1));
            const bool elastic = absl::StrContains(text, ":");
            int32_t least = 0;
            int32_t most = 0;
            if (!absl::SimpleAtoi(ends.first, &least) ||
                !absl::SimpleAtoi(elastic ? ends.second : ends.first, &most) ||
                (elastic &&
                 (least < 1 || least > most || most > limits::kWorkersMax))) {
              return absl::StrCat(
                  "a whole number, or MIN:MAX with 1 <= MIN <= MAX <= ",
                  limits::kWorkersMax);
            }
            options.workers = most;
            options.workers_min = elastic ? least : 0;
            return "";
          },
          .print = &WorkersText};
}

inline std::string ParseEntry(absl::string_view text, double& value) {
  return ParseNumber(text, value);
}
inline std::string ParseEntry(absl::string_view text, std::string& value) {
  value = std::string(text);
  return value.empty() ? "no empty entries" : "";
}
inline std::string PrintEntry(double value) { return PrintNumber(value); }
inline std::string PrintEntry(const std::string& value) { return value; }

inline constexpr absl::string_view kNone = "none";

// Entries separated by `separator`, blanks around them ignored; "none" or
// nothing: an empty list.
template <typename Field>
Setting List(absl::string_view name, char separator, Field field) {
  using T = typename ValueOf<Field>::value_type;
  return {.name = name,
          .read = [separator, field](absl::string_view text,
                                     Options& options) -> std::string {
            std::vector<T> values;
            text = absl::StripAsciiWhitespace(text);
            if (!text.empty() && text != kNone) {
              for (absl::string_view part : absl::StrSplit(text, separator)) {
                std::string wanted = ParseEntry(
                    absl::StripAsciiWhitespace(part), values.emplace_back());
                if (!wanted.empty()) {
                  return absl::StrCat("none, or a list separated by '",
                                      absl::string_view(&separator, 1),
                                      "': ", wanted);
                }
              }
            }
            field(options) = std::move(values);
            return "";
          },
          .print =
              [separator, field](const Options& options) {
                const std::vector<T>& values = field(options);
                if (values.empty()) return std::string(kNone);
                return absl::StrJoin(values, absl::string_view(&separator, 1),
                                     [](std::string* out, const T& value) {
                                       absl::StrAppend(out, PrintEntry(value));
                                     });
              }};
}

}  // namespace cohort::setting_kinds
