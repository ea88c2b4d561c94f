#include "common/dns_label.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

constexpr size_t kLabelLengthMax = 63;

bool IsLabelCharacter(char c) {
  return absl::ascii_islower(static_cast<unsigned char>(c)) ||
         absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-';
}

}  // namespace

absl::Status CheckDnsLabel(absl::string_view field, absl::string_view text) {
  if (!text.empty() && text.size() <= kLabelLengthMax && text.front() != '-' &&
      text.back() != '-' &&
      std::all_of(text.begin(), text.end(), IsLabelCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": got '", absl::CHexEscape(text.substr(0, 2 * kLabelLengthMax)),
      "', want a DNS label: 1 to ", kLabelLengthMax,
      " of a-z, 0-9 and -, with no hyphen at the ends, such as resnet-18"));
}

}  // namespace cohort
