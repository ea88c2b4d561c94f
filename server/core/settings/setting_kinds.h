#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
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
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/flags/flag_limits.h"
#include "common/limits.h"
#include "server/core/settings/options.h"

// The kinds of settings that server_flags.inc lists. Each has:
//
// - Read, which sets `value` from a text, and returns nothing; or what was
//   wanted, and then leaves `value` as it was;
// - Print, the text that reads back as an equal value.
//
// Choices also get the limits of their flag, which have the words, in the order
// of the enumerators.
namespace cohort::setting_kinds {

// A number, a duration, or true or false; or a word, as an entry of a list.
template <typename T>
struct Number {
  static std::string Read(absl::string_view text, T& value) {
    T read{};
    if constexpr (std::is_same_v<T, bool>) {
      if (!absl::SimpleAtob(text, &read)) return "true or false";
    } else if constexpr (std::is_same_v<T, absl::Duration>) {
      if (!absl::ParseDuration(text, &read)) return "a duration such as 10s";
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (text.empty()) return "no empty entries";
      read = std::string(text);
    } else if constexpr (std::is_integral_v<T>) {
      if (!absl::SimpleAtoi(text, &read)) return "a whole number";
    } else {
      if (!absl::SimpleAtod(text, &read) || !std::isfinite(read)) {
        return "a number";
      }
    }
    value = read;
    return "";
  }
  static std::string Print(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, absl::Duration>) {
      return absl::FormatDuration(value);
    } else if constexpr (!std::is_same_v<T, double>) {
      return absl::StrCat(value);
    } else {
      const std::string brief = absl::StrCat(value);
      T back{};
      if (absl::SimpleAtod(brief, &back) && back == value) return brief;
      return absl::StrFormat("%.17g", value);
    }
  }
};

template <typename Enum>
bool ReadWord(absl::string_view text,
              const std::vector<absl::string_view>& words, Enum& value) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found == words.end()) return false;
  value = static_cast<Enum>(found - words.begin());
  return true;
}

// One of some words.
struct Choice {
  template <typename Enum>
  static std::string Read(absl::string_view text, const FlagLimits& limits,
                          Enum& value) {
    return ReadWord(text, limits.words, value) ? "" : limits.ToString();
  }
  template <typename Enum>
  static std::string Print(Enum value, const FlagLimits& limits) {
    return std::string(limits.words[static_cast<size_t>(value)]);
  }
};

// Several of some words, separated by commas; none: "auto".
struct Choices {
  template <typename Enum>
  static std::string Read(absl::string_view text, const FlagLimits& limits,
                          std::vector<Enum>& value) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(text == "auto" ? "" : text, ',', absl::SkipEmpty());
    std::vector<Enum> read(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!ReadWord(parts[i], limits.entries, read[i])) {
        return limits.ToString();
      }
    }
    value = std::move(read);
    return "";
  }
  template <typename Enum>
  static std::string Print(const std::vector<Enum>& value,
                           const FlagLimits& limits) {
    if (value.empty()) return "auto";
    return absl::StrJoin(value, ",", [&limits](std::string* out, Enum one) {
      absl::StrAppend(out, limits.entries[static_cast<size_t>(one)]);
    });
  }
};

// A whole number that may be absent: "auto".
struct OrAuto {
  static std::string Read(absl::string_view text,
                          std::optional<int64_t>& value) {
    int64_t read = 0;
    if (text == "auto") {
      value.reset();
    } else if (absl::SimpleAtoi(text, &read)) {
      value = read;
    } else {
      return "auto or a whole number";
    }
    return "";
  }
  static std::string Print(const std::optional<int64_t>& value) {
    return value.has_value() ? absl::StrCat(*value) : "auto";
  }
};

// A whole number, or 0: "sum".
struct OrSum {
  static std::string Read(absl::string_view text, int64_t& value) {
    int64_t read = 0;
    if (text != "sum" && (!absl::SimpleAtoi(text, &read) || read < 1)) {
      return "sum or a whole number, 1 or more";
    }
    value = read;
    return "";
  }
  static std::string Print(int64_t value) {
    return value == 0 ? "sum" : absl::StrCat(value);
  }
};

// Weights by rank, such as "1,3"; "auto", or "auto:1,3" once it has found some;
// "none".
struct Shares {
  static std::string Read(absl::string_view text, ShareOptions& value) {
    ShareOptions read{.automatic = text == "auto" ||
                                   absl::ConsumePrefix(&text, "auto:")};
    if (text != "none" && text != "auto") {
      for (absl::string_view part : absl::StrSplit(text, ',')) {
        int64_t& weight = read.weights.emplace_back();
        if (absl::SimpleAtoi(part, &weight) && weight >= 1 &&
            weight <= limits::kGlobalBatchMax) {
          continue;
        }
        return absl::StrCat(
            "none, auto, or a weight for each rank, whole numbers from 1 to ",
            limits::kGlobalBatchMax, " separated by commas");
      }
    }
    value = std::move(read);
    return "";
  }
  static std::string Print(const ShareOptions& value) {
    const std::string weights = absl::StrJoin(value.weights, ",");
    if (!value.automatic) return weights.empty() ? "none" : weights;
    return weights.empty() ? "auto" : absl::StrCat("auto:", weights);
  }
};

// The size of the cohort: 0 and 4 for "4", or 2 and 8 for "2:8" if it is
// elastic.
struct CohortSize {
  static std::string Read(absl::string_view text,
                          std::tuple<int32_t&, int32_t&> value) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    const bool elastic = absl::StrContains(text, ":");
    int32_t least = 0;
    int32_t most = 0;
    if (!absl::SimpleAtoi(ends.first, &least) ||
        !absl::SimpleAtoi(elastic ? ends.second : ends.first, &most) ||
        (elastic &&
         (least < 1 || least > most || most > limits::kWorkersMax))) {
      return absl::StrCat("a whole number, or MIN:MAX with 1 <= MIN <= MAX <= ",
                          limits::kWorkersMax);
    }
    value = std::make_tuple(elastic ? least : 0, most);
    return "";
  }
  static std::string Print(std::tuple<const int32_t&, const int32_t&> value) {
    const auto [least, most] = value;
    return least > 0 ? absl::StrCat(least, ":", most) : absl::StrCat(most);
  }
};

// Entries with `kSeparator` between them, blanks around them ignored; "none"
// or nothing: an empty list.
template <typename T, char kSeparator>
struct Entries {
  static std::string Read(absl::string_view text, std::vector<T>& value) {
    std::vector<T> read;
    text = absl::StripAsciiWhitespace(text);
    if (!text.empty() && text != "none") {
      for (absl::string_view part : absl::StrSplit(text, kSeparator)) {
        const std::string wanted = Number<T>::Read(
            absl::StripAsciiWhitespace(part), read.emplace_back());
        if (wanted.empty()) continue;
        return absl::StrCat("none, or a list separated by '",
                            std::string(1, kSeparator), "': ", wanted);
      }
    }
    value = std::move(read);
    return "";
  }
  static std::string Print(const std::vector<T>& value) {
    if (value.empty()) return "none";
    return absl::StrJoin(value, std::string(1, kSeparator),
                         [](std::string* out, const T& entry) {
                           absl::StrAppend(out, Number<T>::Print(entry));
                         });
  }
};
using Words = Entries<std::string, ','>;
using Numbers = Entries<double, ','>;
// Slices contain commas: "conv2.weight[:,0:2]".
using Slices = Entries<std::string, ';'>;

}  // namespace cohort::setting_kinds
