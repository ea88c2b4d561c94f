#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Owners of OpenSSL's objects.
namespace cohort {

struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const {
    X509_STORE_CTX_free(context);
  }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};
template <typename T>
using OpenSslPtr = std::unique_ptr<T, FreeOpenSsl>;

// A reader of `text`, which must outlive it.
inline OpenSslPtr<BIO> MemoryReader(absl::string_view text) {
  return OpenSslPtr<BIO>(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The library's newest error in words; clears its list of errors.
inline std::string OpenSslError() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

// The certificates of a PEM text in their order; none if it has none.
std::vector<OpenSslPtr<X509>> ReadPemCertificates(absl::string_view pem);

}  // namespace cohort
