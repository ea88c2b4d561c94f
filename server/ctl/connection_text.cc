#include "server/ctl/connection_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/printable.h"
#include "common/security/tls_files.h"

namespace cohort {

absl::Time ConnectionView::first_end() const {
  return std::min(own_end, server_end);
}

ConnectionView ConnectionOf(const ServerTarget& target,
                            const v1::Status& status) {
  ConnectionView view{.encrypted = target.tls.encrypted(),
                      .client = Printable(status.caller())};
  const absl::StatusOr<TlsContent> own = ReadTlsFiles(target.tls, absl::Now());
  if (own.ok()) view.own_end = own->not_after;
  if (status.has_certificate_end_unix_s()) {
    view.server_end = absl::FromUnixSeconds(status.certificate_end_unix_s());
  }
  return view;
}

std::string ConnectionText(const ConnectionView& connection, absl::Time now) {
  if (!connection.encrypted) return "not encrypted";
  std::string text = "encrypted";
  if (!connection.client.empty()) {
    absl::StrAppend(&text, ", as ", connection.client);
  }
  if (connection.own_end != absl::InfiniteFuture()) {
    absl::StrAppend(&text, ", own certificate ends ",
                    EndText(connection.own_end, now));
  }
  if (connection.server_end != absl::InfiniteFuture()) {
    absl::StrAppend(&text, ", the server's ",
                    EndText(connection.server_end, now));
  }
  return text;
}

std::string EndText(absl::Time end, absl::Time now) {
  if (end <= now) return "expired";
  const absl::Duration left = end - now;
  const int64_t days = left / absl::Hours(24);
  return days > 0 ? absl::StrCat("in ", days, days == 1 ? " day" : " days")
                  : absl::StrCat("in ", left / absl::Minutes(1), " minutes");
}

}  // namespace cohort
