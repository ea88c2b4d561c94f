#include "server/ctl/cluster/line_buffer.h"

#include "absl/strings/strip.h"

namespace cohort {
namespace {

constexpr size_t kLineBytesMax = size_t{64} << 10;

}  // namespace

void LineBuffer::Append(absl::string_view bytes,
                        absl::FunctionRef<void(absl::string_view)> on_line) {
  for (;;) {
    const size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) break;
    rest_.append(bytes.data(), end);
    on_line(absl::StripSuffix(rest_, "\r"));
    rest_.clear();
    bytes.remove_prefix(end + 1);
  }
  rest_.append(bytes.data(), bytes.size());
  if (rest_.size() >= kLineBytesMax) Flush(on_line);
}

void LineBuffer::Flush(absl::FunctionRef<void(absl::string_view)> on_line) {
  if (rest_.empty()) return;
  on_line(rest_);
  rest_.clear();
}

}  // namespace cohort
