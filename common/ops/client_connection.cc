#include "common/ops/client_connection.h"

#include <netdb.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/resolve.h"
#include "common/security/certificate.h"
#include "common/security/openssl_handles.h"
#include "common/status_macros.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

absl::Status Refused(absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("TLS: ", what, ": ", OpenSslError()));
}

absl::Status UseOwn(SSL_CTX* context, const TlsContent& tls) {
  const std::vector<OpenSslPtr<X509>> chain = ReadPemCertificates(tls.cert);
  const OpenSslPtr<BIO> reader = MemoryReader(tls.key);
  const OpenSslPtr<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, nullptr));
  if (chain.empty() || key == nullptr ||
      SSL_CTX_use_certificate(context, chain.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return Refused("the own certificate cannot be used");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    SSL_CTX_add1_chain_cert(context, chain[i].get());
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenSslPtr<SSL_CTX>> ContextFor(const TlsContent& tls) {
  OpenSslPtr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return Refused("no context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A peer that closes without TLS's own farewell has ended its answer: the
  // answer's length is checked by HTTP.
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  X509_STORE* store = SSL_CTX_get_cert_store(context.get());
  for (const OpenSslPtr<X509>& authority : ReadPemCertificates(tls.ca)) {
    X509_STORE_add_cert(store, authority.get());
  }
  if (!tls.cert.empty()) {
    COHORT_RETURN_IF_ERROR(UseOwn(context.get(), tls));
  }
  return context;
}

// Keeps a peer that has closed the connection from ending this process by
// SIGPIPE, which OpenSSL's writes would raise.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    const int error = errno;
    const timespec now = {};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace

// The client's side of TLS over a connected, blocking socket. Errors as of
// ClientConnection, without the address.
class ClientConnection::Tls {
 public:
  static absl::StatusOr<std::unique_ptr<Tls>> Connect(
      int fd, const TlsContent& tls, absl::string_view protocol);

  absl::Status Send(absl::string_view bytes) {
    const NoBrokenPipe guard;
    while (!bytes.empty()) {
      size_t written = 0;
      if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) != 1) {
        return Failed("sending");
      }
      bytes.remove_prefix(written);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> Read(absl::Span<char> into) {
    size_t read = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &read);
    if (result == 1) return read;
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_ZERO_RETURN) return 0;
    return Failed("reading");
  }

 private:
  Tls(OpenSslPtr<SSL_CTX> context, OpenSslPtr<SSL> ssl)
      : context_(std::move(context)), ssl_(std::move(ssl)) {}

  absl::Status Shake() {
    const NoBrokenPipe guard;
    if (SSL_connect(ssl_.get()) == 1) return absl::OkStatus();
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified == X509_V_OK) return Failed("the handshake");
    ERR_clear_error();
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of the other side is not accepted: ",
                     X509_verify_cert_error_string(verified)));
  }

  // The peer must belong to the run of `own`.
  absl::Status CheckPeer(const std::optional<Identity>& own) {
    const OpenSslPtr<X509> peer(SSL_get1_peer_certificate(ssl_.get()));
    unsigned char* der = nullptr;
    const int length = i2d_X509(peer.get(), &der);
    if (length <= 0) return Refused("no certificate of the other side");
    const absl::StatusOr<Certificate> certificate =
        ParseDerCertificate(absl::string_view(reinterpret_cast<char*>(der),
                                              static_cast<size_t>(length)));
    OPENSSL_free(der);
    COHORT_RETURN_IF_ERROR(certificate.status());
    const absl::StatusOr<Identity> identity =
        IdentityOf("the other side", *certificate);
    if (!identity.ok()) {
      return absl::UnauthenticatedError(identity.status().message());
    }
    if (!own.has_value() ||
        (own->domain == identity->domain && own->run == identity->run)) {
      return absl::OkStatus();
    }
    return absl::UnauthenticatedError(absl::StrCat(
        "the other side's certificate is for ", identity->Uri(),
        ", want one of the run spiffe://", own->domain, "/cohort/", own->run));
  }

  absl::Status Failed(absl::string_view what) const {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ERR_clear_error();
      return absl::DeadlineExceededError("no answer in time");
    }
    if (ERR_peek_error() == 0 && errno != 0) {
      return absl::UnavailableError(
          absl::StrCat("TLS: ", what, ": ", std::strerror(errno)));
    }
    return Refused(what);
  }

  const OpenSslPtr<SSL_CTX> context_;
  const OpenSslPtr<SSL> ssl_;
};

absl::StatusOr<std::unique_ptr<ClientConnection::Tls>>
ClientConnection::Tls::Connect(int fd, const TlsContent& tls,
                               absl::string_view protocol) {
  COHORT_ASSIGN_OR_RETURN(OpenSslPtr<SSL_CTX> context, ContextFor(tls));
  if (!protocol.empty()) {
    // A list of names, each behind its length.
    const std::string names = absl::StrCat(
        std::string(1, static_cast<char>(protocol.size())), protocol);
    SSL_CTX_set_alpn_protos(
        context.get(), reinterpret_cast<const unsigned char*>(names.data()),
        static_cast<unsigned int>(names.size()));
  }
  OpenSslPtr<SSL> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) {
    return Refused("no connection");
  }
  std::unique_ptr<Tls> stream(new Tls(std::move(context), std::move(ssl)));
  errno = 0;
  COHORT_RETURN_IF_ERROR(stream->Shake());
  COHORT_RETURN_IF_ERROR(stream->CheckPeer(tls.identity));
  return stream;
}

ClientConnection::ClientConnection(absl::string_view flag,
                                   absl::string_view address, Instant deadline)
    : flag_(flag), address_(address), deadline_(deadline) {}

ClientConnection::~ClientConnection() = default;

absl::Status ClientConnection::Open() {
  COHORT_ASSIGN_OR_RETURN(const ListenAddress parsed,
                          ParseListenAddress(flag_, address_));
  if (parsed.is_unix()) {
    COHORT_ASSIGN_OR_RETURN(const UnixAddress name,
                            UnixAddressOf(parsed.socket));
    return Connect(name.get(), name.size);
  }
  const absl::StatusOr<Addresses> found = Resolve(parsed);
  if (!found.ok()) return Named(found.status());
  absl::Status status;
  for (const addrinfo* to = found->get(); to != nullptr; to = to->ai_next) {
    status = Connect(to->ai_addr, to->ai_addrlen);
    if (status.ok()) return status;
  }
  return status;
}

absl::StatusOr<uint32_t> ClientConnection::PeerUser() const {
  return PeerUserOf(fd_.get());
}

absl::Status ClientConnection::Connect(const sockaddr* address,
                                       socklen_t size) {
  fd_ =
      FileDescriptor(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_.valid()) return Failed();
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  // On Linux the send timeout also limits connect.
  return connect(fd_.get(), address, size) == 0 ? absl::OkStatus() : Failed();
}

absl::Status ClientConnection::Encrypt(const TlsContent& tls,
                                       absl::string_view protocol) {
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  absl::StatusOr<std::unique_ptr<Tls>> stream =
      Tls::Connect(fd_.get(), tls, protocol);
  if (!stream.ok()) return Named(stream.status());
  tls_ = *std::move(stream);
  return absl::OkStatus();
}

bool ClientConnection::AnswersHandshake() {
  if (!SetTimeouts().ok()) return false;
  const OpenSslPtr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  const OpenSslPtr<SSL> ssl(context == nullptr ? nullptr
                                               : SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd_.get()) != 1) return false;
  SSL_set_verify(ssl.get(), SSL_VERIFY_NONE, nullptr);
  bool answered = false;
  SSL_set_msg_callback_arg(ssl.get(), &answered);
  SSL_set_msg_callback(
      ssl.get(), [](int sent, int /*version*/, int type, const void* /*bytes*/,
                    size_t /*length*/, SSL* /*ssl*/, void* into) {
        if (sent == 0 && (type == SSL3_RT_HANDSHAKE || type == SSL3_RT_ALERT)) {
          *static_cast<bool*>(into) = true;
        }
      });
  const NoBrokenPipe guard;
  // Its result does not matter.
  SSL_connect(ssl.get());
  ERR_clear_error();
  return answered;
}

absl::Status ClientConnection::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    COHORT_RETURN_IF_ERROR(SetTimeouts());
    if (tls_ != nullptr) return Named(tls_->Send(bytes));
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0) return Failed();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ClientConnection::Read(absl::Span<char> into) {
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  if (tls_ != nullptr) {
    absl::StatusOr<size_t> read = tls_->Read(into);
    if (!read.ok()) return Named(read.status());
    return read;
  }
  const ssize_t n = recv(fd_.get(), into.data(), into.size(), 0);
  if (n < 0) return Failed();
  return static_cast<size_t>(n);
}

absl::Status ClientConnection::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(address_, ": ", status.message()));
}

absl::Status ClientConnection::Late() const {
  return absl::DeadlineExceededError(
      absl::StrCat(address_, ": no answer in time"));
}

absl::Status ClientConnection::SetTimeouts() {
  const absl::Duration left = deadline_ - clock_.Now();
  if (left <= absl::ZeroDuration()) return Late();
  // Zero would mean no timeout.
  const timeval limit = absl::ToTimeval(std::max(left, absl::Milliseconds(1)));
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  return absl::OkStatus();
}

absl::Status ClientConnection::Failed() const {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS) {
    return Late();
  }
  return absl::UnavailableError(
      absl::StrCat(address_, ": ", std::strerror(errno)));
}

}  // namespace cohort
