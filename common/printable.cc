#include "common/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

// One character: its code and its length in bytes; length 0 if the bytes are
// not UTF-8.
struct Character {
  uint32_t code = 0;
  size_t length = 0;
};

Character FirstOf(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.code = lead, .length = 1};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {};
  uint32_t code = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && code < 0x800) ||
                        (length == 4 && (code < 0x10000 || code > 0x10ffff));
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (overlong || surrogate) return {};
  return {.code = code, .length = length};
}

bool IsHarmful(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) ||
         // Arabic letter mark, marks of direction.
         code == 0x061c || code == 0x200e || code == 0x200f ||
         // Line and paragraph separators, embeddings and overrides.
         (code >= 0x2028 && code <= 0x202e) ||
         // Isolates.
         (code >= 0x2066 && code <= 0x2069) ||
         // Zero-width no-break space, interlinear annotations.
         code == 0xfeff || (code >= 0xfff9 && code <= 0xfffb);
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const size_t length = first.length == 0 ? 1 : first.length;
    if (first.length == 0 || first.code < 0x80) {
      const auto byte = static_cast<unsigned char>(text[0]);
      if (first.length == 0 || IsHarmful(byte)) {
        absl::StrAppend(&shown, "\\x", absl::Hex(byte, absl::kZeroPad2));
      } else {
        shown.push_back(text[0]);
      }
    } else if (IsHarmful(first.code)) {
      absl::StrAppend(&shown, "\\u{", absl::Hex(first.code), "}");
    } else {
      shown.append(text.data(), length);
    }
    text.remove_prefix(length);
  }
  return shown;
}

bool IsPrintable(absl::string_view text) { return Printable(text) == text; }

}  // namespace cohort
