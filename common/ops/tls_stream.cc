#include "common/ops/tls_stream.h"

#include <openssl/ssl.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/security/certificate.h"
#include "common/security/openssl_handles.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
template <typename T>
using SslPtr = std::unique_ptr<T, FreeSsl>;

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

absl::StatusOr<SslPtr<SSL_CTX>> ContextFor(const TlsContent& tls) {
  SslPtr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
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

class OpenSslStream final : public TlsStream {
 public:
  OpenSslStream(SslPtr<SSL_CTX> context, SslPtr<SSL> ssl)
      : context_(std::move(context)), ssl_(std::move(ssl)) {}

  absl::Status Send(absl::string_view bytes) override {
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

  absl::StatusOr<size_t> Read(absl::Span<char> into) override {
    size_t read = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &read);
    if (result == 1) return read;
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_ZERO_RETURN) return 0;
    return Failed("reading");
  }

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

 private:
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

  const SslPtr<SSL_CTX> context_;
  const SslPtr<SSL> ssl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsStream>> TlsStream::Connect(
    int fd, const TlsContent& tls, absl::string_view protocol) {
  COHORT_ASSIGN_OR_RETURN(SslPtr<SSL_CTX> context, ContextFor(tls));
  if (!protocol.empty()) {
    // A list of names, each behind its length.
    const std::string names = absl::StrCat(
        std::string(1, static_cast<char>(protocol.size())), protocol);
    SSL_CTX_set_alpn_protos(
        context.get(), reinterpret_cast<const unsigned char*>(names.data()),
        static_cast<unsigned int>(names.size()));
  }
  SslPtr<SSL> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) {
    return Refused("no connection");
  }
  auto stream =
      std::make_unique<OpenSslStream>(std::move(context), std::move(ssl));
  errno = 0;
  COHORT_RETURN_IF_ERROR(stream->Shake());
  COHORT_RETURN_IF_ERROR(stream->CheckPeer(tls.identity));
  return std::unique_ptr<TlsStream>(std::move(stream));
}

bool TlsStream::AnswersHandshake(int fd) {
  const SslPtr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  const SslPtr<SSL> ssl(context == nullptr ? nullptr : SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) return false;
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

}  // namespace cohort
