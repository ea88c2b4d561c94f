#include "server/ctl/support/redact.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

constexpr absl::string_view kRedacted = "[redacted]";
constexpr std::array<absl::string_view, 9> kSecretNames = {
    "token",   "secret",     "password",    "passwd",       "credential",
    "api_key", "access_key", "private_key", "authorization"};

// Tokens of `cohortctl certs token` have 43 characters.
constexpr size_t kTokenLengthMin = 32;

bool IsNamePart(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
         c == '-';
}

bool NamesASecret(absl::string_view name) {
  std::string lower = absl::AsciiStrToLower(name);
  std::replace(lower.begin(), lower.end(), '-', '_');
  return std::any_of(
      kSecretNames.begin(), kSecretNames.end(),
      [&lower](absl::string_view s) { return absl::StrContains(lower, s); });
}

// The end of a value that begins at `at`. A header's value may be several
// words.
size_t ValueEnd(absl::string_view line, size_t at, bool is_header) {
  if (line[at] == '"' || line[at] == '\'') {
    const size_t quote = line.find(line[at], at + 1);
    return quote == absl::string_view::npos ? line.size() : quote + 1;
  }
  const absl::string_view ends = is_header ? "\"'" : " \t\"',;&})]";
  return std::min(line.find_first_of(ends, at), line.size());
}

// The position after the "=" or ":" that follows a name ending at `at`, and
// after blanks; npos if there is no "=" or ":".
size_t ValueStart(absl::string_view line, size_t at) {
  // The name of a JSON field ends with a quote.
  if (at < line.size() && (line[at] == '"' || line[at] == '\'')) ++at;
  at = line.find_first_not_of(" \t", at);
  if (at == absl::string_view::npos || (line[at] != '=' && line[at] != ':')) {
    return absl::string_view::npos;
  }
  return line.find_first_not_of(" \t", at + 1);
}

std::string WithoutNamedSecrets(absl::string_view line) {
  std::string out;
  size_t at = 0;
  while (at < line.size()) {
    if (!IsNamePart(line[at])) {
      out += line[at++];
      continue;
    }
    size_t end = at;
    while (end < line.size() && IsNamePart(line[end])) ++end;
    const absl::string_view name = line.substr(at, end - at);
    const size_t value =
        NamesASecret(name) ? ValueStart(line, end) : absl::string_view::npos;
    if (value == absl::string_view::npos) {
      out.append(name.data(), name.size());
      at = end;
      continue;
    }
    const bool quoted = line[value] == '"' || line[value] == '\'';
    const absl::string_view quote = line.substr(value, quoted ? 1 : 0);
    absl::StrAppend(&out, line.substr(at, value - at), quote, kRedacted, quote);
    at = ValueEnd(line, value,
                  absl::EqualsIgnoreCase(name, "authorization") ||
                      absl::EqualsIgnoreCase(name, "proxy-authorization"));
  }
  return out;
}

// Removes the password from http://user:password@host, between the colon and
// the "@".
std::string WithoutUrlPasswords(absl::string_view line) {
  std::string out;
  for (;;) {
    const size_t scheme = line.find("://");
    if (scheme == absl::string_view::npos) break;
    const size_t host = scheme + 3;
    const absl::string_view authority =
        line.substr(host, line.find_first_of("/ \t\"'", host) - host);
    const size_t at = authority.rfind('@');
    const size_t colon = authority.find(':');
    if (at == absl::string_view::npos || colon > at) {
      out.append(line.data(), host);
      line.remove_prefix(host);
      continue;
    }
    absl::StrAppend(&out, line.substr(0, host + colon + 1), kRedacted);
    line.remove_prefix(host + at);
  }
  return absl::StrCat(out, line);
}

}  // namespace

std::string Redacted(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    absl::StrAppend(
        &out, WithoutUrlPasswords(WithoutNamedSecrets(text.substr(0, end))));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string SecretIn(absl::string_view text) {
  if (absl::StrContains(text, "PRIVATE KEY-----")) {
    return "holds a private key, which is never packed";
  }
  const absl::string_view word = absl::StripAsciiWhitespace(text);
  const bool one_word =
      std::none_of(word.begin(), word.end(),
                   [](unsigned char c) { return absl::ascii_isspace(c); });
  if (word.size() >= kTokenLengthMin && one_word) {
    return "looks like a token, which is never packed";
  }
  return "";
}

std::string RedactedVariables(absl::Span<const std::string> environment) {
  std::vector<std::string> lines;
  for (const std::string& variable : environment) {
    if (absl::StartsWith(variable, "COHORT_")) {
      lines.push_back(absl::StrCat(Redacted(variable), "\n"));
    }
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

}  // namespace cohort
