#include "common/listen_address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace cohort {

bool ListenAddress::loopback() const {
  return host == "localhost" || host == "[::1]" ||
         absl::StartsWith(host, "127.");
}

std::string ListenAddress::ToString() const {
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag,
                                                 absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  if (colon != absl::string_view::npos) {
    const absl::string_view host = text.substr(0, colon);
    address.host = std::string(host.data(), host.size());
  }
  const bool bracketed =
      absl::StartsWith(address.host, "[") && absl::EndsWith(address.host, "]");
  const bool bare_ipv6 = absl::StrContains(address.host, ":") && !bracketed;
  if (address.host.empty() || bare_ipv6 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": got '", text,
        "', want host:port such as 127.0.0.1:7070, with a port of 0 to 65535"));
  }
  return address;
}

absl::Status CheckServerAddress(absl::string_view flag,
                                absl::string_view text) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:", "unix:"}) {
    if (absl::StartsWith(text, scheme)) return absl::OkStatus();
  }
  return ParseListenAddress(flag, text).status();
}

std::string UrlHere(absl::string_view address, bool encrypted) {
  const char* const scheme = encrypted ? "https://" : "http://";
  for (const char* all : {"0.0.0.0:", "[::]:"}) {
    if (absl::ConsumePrefix(&address, all)) {
      return absl::StrCat(scheme, "localhost:", address, "/");
    }
  }
  return absl::StrCat(scheme, address, "/");
}

absl::Status CheckExposure(absl::string_view flag, const ListenAddress& address,
                           bool insecure, absl::string_view risk) {
  if (address.loopback() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": got ", address.ToString(),
      ", which other machines can reach, and the connection is not "
      "encrypted or authenticated; listen on 127.0.0.1, or pass --insecure "
      "if everyone on that network may ",
      risk));
}

}  // namespace cohort
