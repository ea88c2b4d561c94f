#include "common/security/tokens.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/dns_label.h"
#include "common/security/small_file.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr absl::string_view kFlag = "--viewer_tokens";
constexpr size_t kTokenBytes = 32;
constexpr size_t kHashLength = 64;
// Longer ones are refused unread, because each is hashed.
constexpr size_t kTokenLengthMax = 1024;

bool IsHash(absl::string_view text) {
  return text.size() == kHashLength &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

absl::Status CheckLine(const std::vector<absl::string_view>& words) {
  if (words.size() != 2 || !IsHash(words[1])) {
    return absl::InvalidArgumentError(
        "want a name and the SHA-256 of the token, 64 of 0-9 and a-f; "
        "cohortctl certs token writes such lines");
  }
  return CheckDnsLabel("name", words[0]);
}

absl::StatusOr<std::map<std::string, std::string>> ParseTokens(
    const std::string& path, absl::string_view text) {
  std::map<std::string, std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0].front() == '#') continue;
    const absl::Status good = CheckLine(words);
    if (!good.ok()) {
      // The line itself may be a token, so it is not repeated.
      return absl::InvalidArgumentError(absl::StrCat(
          kFlag, ": ", path, " line ", number, ": ", good.message()));
    }
    names[std::string(words[1].data(), words[1].size())] =
        std::string(words[0].data(), words[0].size());
  }
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokens>> Tokens::Load(const std::string& path) {
  std::unique_ptr<Tokens> tokens(new Tokens(path));
  COHORT_RETURN_IF_ERROR(tokens->Refresh());
  return tokens;
}

absl::Status Tokens::Refresh() {
  if (path_.empty()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(std::string text, ReadSmallFile(kFlag, path_));
  if (text == text_) return absl::OkStatus();
  text_ = text;
  absl::StatusOr<std::map<std::string, std::string>> parsed =
      ParseTokens(path_, text);
  if (!parsed.ok() && loaded_) {
    return absl::InvalidArgumentError(
        absl::StrCat(parsed.status().message(),
                     "; the tokens read before remain valid, also those that "
                     "were removed now, until the file is correct"));
  }
  COHORT_ASSIGN_OR_RETURN(auto names, std::move(parsed));
  loaded_ = true;
  MutexLock lock(mu_);
  names_ = std::move(names);
  return absl::OkStatus();
}

std::string Tokens::NameOf(absl::string_view token) const {
  if (token.empty() || token.size() > kTokenLengthMax) return "";
  const std::string hash = TokenHash(token);
  std::string found;
  MutexLock lock(mu_);
  // All are compared, so that the time tells nothing.
  for (const auto& [known, name] : names_) {
    if (CRYPTO_memcmp(known.data(), hash.data(), kHashLength) == 0) {
      found = name;
    }
  }
  return found;
}

std::string TokenHash(absl::string_view token) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_Digest(token.data(), token.size(), digest.data(), &length, EVP_sha256(),
             nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), length));
}

absl::StatusOr<std::string> NewToken() {
  std::array<unsigned char, kTokenBytes> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return absl::InternalError("no random bytes could be had");
  }
  return absl::WebSafeBase64Escape(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace cohort
