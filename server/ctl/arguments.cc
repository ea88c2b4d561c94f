#include "server/ctl/arguments.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace cohort {
namespace {

constexpr absl::Duration kIntervalMin = absl::Milliseconds(100);

const FlagSpec* Find(absl::Span<const FlagSpec* const> known,
                     absl::string_view name) {
  const auto found =
      std::find_if(known.begin(), known.end(),
                   [name](const FlagSpec* flag) { return flag->name == name; });
  return found == known.end() ? nullptr : *found;
}

// The flags that have a short form.
absl::string_view LongForm(absl::string_view argument) {
  if (argument == "-h") return "--help";
  if (argument == "-q") return "--quiet";
  if (argument == "-o") return "--output";
  return argument;
}

}  // namespace

std::optional<std::string> Arguments::Value(const std::string& flag) const {
  const auto found = flags.find(flag);
  if (found == flags.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<int32_t> NumberOf(const Arguments& arguments,
                                 const std::string& flag, int32_t otherwise,
                                 Limits limits) {
  const std::optional<std::string> text = arguments.Value(flag);
  if (!text.has_value()) return otherwise;
  int32_t number = 0;
  if (absl::SimpleAtoi(*text, &number) && number >= limits.min &&
      number <= limits.max) {
    return number;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, ": got '", *text, "', want ", limits.min,
      limits.max == INT32_MAX ? " or more" : absl::StrCat(" to ", limits.max)));
}

std::string ShellWord(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("-_=./:,+@%").find(c) != absl::string_view::npos;
  });
  if (plain && !word.empty()) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", R"('\'')"}}), "'");
}

absl::StatusOr<absl::Duration> IntervalOf(const Arguments& arguments,
                                          absl::Duration otherwise) {
  const std::optional<std::string> text = arguments.Value("interval");
  if (!text.has_value()) return otherwise;
  absl::Duration interval;
  if (absl::ParseDuration(*text, &interval) && interval >= kIntervalMin) {
    return interval;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--interval: got '", *text,
                   "', want a duration such as 2s, of at least 100ms"));
}

absl::StatusOr<Arguments> ReadArguments(
    absl::Span<const std::string> arguments,
    absl::Span<const FlagSpec* const> known) {
  Arguments read;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "--") {
      read.rest.emplace(arguments.begin() + static_cast<ptrdiff_t>(i) + 1,
                        arguments.end());
      break;
    }
    const size_t first = i;
    argument = LongForm(argument);
    if (!absl::ConsumePrefix(&argument, "--")) {
      read.words.push_back(arguments[i]);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("got '", arguments[i], "', want --name=value"));
    }
    const FlagSpec* flag = Find(known, name);
    const bool is_switch = flag != nullptr && flag->value.empty();
    const bool word_follows =
        i + 1 < arguments.size() &&
        !absl::StartsWith(LongForm(arguments[i + 1]), "--");
    std::string value = "true";
    if (equals != absl::string_view::npos) {
      if (is_switch) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " takes no value, got '",
                         argument.substr(equals + 1), "'"));
      }
      value = std::string(argument.substr(equals + 1));
    } else if (!is_switch && word_follows) {
      value = arguments[++i];
    } else if (flag != nullptr && !is_switch) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, " needs a value: --", name, "=", flag->value));
    }
    if (!read.flags.emplace(name, value).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is given twice"));
    }
    read.given.push_back(
        {.name = name,
         .typed = {arguments.begin() + static_cast<ptrdiff_t>(first),
                   arguments.begin() + static_cast<ptrdiff_t>(i) + 1}});
  }
  return read;
}

}  // namespace cohort
