#include "common/listen_address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

constexpr absl::string_view kPathScheme = "unix:";
constexpr absl::string_view kAbstractScheme = "unix-abstract:";

bool IsControl(char c) { return absl::ascii_iscntrl(c); }

// Whether `host` may be a name, an IPv4 address, or an IPv6 address in
// brackets. Names are not checked further: resolvers decide what they know.
bool IsHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) {
    return absl::ConsumeSuffix(&host, "]") && absl::StrContains(host, ":") &&
           host.find_first_of("[]/ ,") == absl::string_view::npos;
  }
  return !host.empty() && !std::any_of(host.begin(), host.end(), IsControl) &&
         host.find_first_of("[]:/ ,") == absl::string_view::npos;
}

// The path of "/run/socket" or of "///run/socket", as in a URI; empty if it is
// none.
std::string SocketPath(absl::string_view text) {
  const size_t slashes = std::min(text.find_first_not_of('/'), text.size());
  if (slashes == 0 || slashes == 2 || slashes == text.size() ||
      absl::EndsWith(text, "/")) {
    return "";
  }
  return std::string(text.substr(slashes - 1));
}

absl::StatusOr<ListenAddress> ParseUnixAddress(absl::string_view flag,
                                               absl::string_view text) {
  ListenAddress address;
  absl::string_view name = text;
  if (absl::ConsumePrefix(&name, kAbstractScheme)) {
    if (!name.empty()) address.socket = absl::StrCat("@", name);
  } else if (absl::ConsumePrefix(&name, kPathScheme)) {
    address.socket = SocketPath(name);
  }
  // An address is a line of a file.
  if (address.socket.empty() ||
      std::any_of(name.begin(), name.end(), IsControl)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": got '", text,
        "', want unix: and the path of a socket from the root, such as "
        "unix:/run/cohort/socket, or unix-abstract: and a name"));
  }
  const absl::Status usable = UnixAddressOf(address.socket).status();
  if (!usable.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", usable.message()));
  }
  return address;
}

}  // namespace

bool ListenAddress::loopback() const {
  return is_unix() || host == "localhost" || host == "[::1]" ||
         absl::StartsWith(host, "127.");
}

std::string ListenAddress::ToString() const {
  if (absl::StartsWith(socket, "@")) {
    return absl::StrCat(kAbstractScheme, socket.substr(1));
  }
  if (is_unix()) return absl::StrCat(kPathScheme, socket);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseHostPort(absl::string_view flag,
                                            absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  if (colon != absl::string_view::npos) {
    const absl::string_view host = text.substr(0, colon);
    address.host = std::string(host.data(), host.size());
  }
  if (!IsHost(address.host) ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": got '", text,
        "', want host:port such as 127.0.0.1:7070, with a port of 0 to 65535"));
  }
  return address;
}

bool IsUnixAddress(absl::string_view text) {
  return absl::StartsWith(text, kPathScheme) ||
         absl::StartsWith(text, kAbstractScheme);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag,
                                                 absl::string_view text) {
  if (IsUnixAddress(text)) return ParseUnixAddress(flag, text);
  absl::StatusOr<ListenAddress> address = ParseHostPort(flag, text);
  if (address.ok()) return address;
  return absl::InvalidArgumentError(
      absl::StrCat(address.status().message(), ", or unix:/path"));
}

absl::Status CheckServerAddress(absl::string_view flag,
                                absl::string_view text) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:"}) {
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
