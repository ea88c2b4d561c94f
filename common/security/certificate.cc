#include "common/security/certificate.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/security/openssl_handles.h"

namespace cohort {
namespace {

std::string NameText(const X509_NAME* name) {
  const OpenSslPtr<BIO> text(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(text.get(), name, 0,
                     XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* data = nullptr;
  const long length = BIO_get_mem_data(text.get(), &data);
  return std::string(data, static_cast<size_t>(length));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const OpenSslPtr<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return uris;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

std::string FingerprintOf(const X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (X509_digest(certificate, EVP_sha256(), digest, &length) != 1) return "";
  return absl::StrJoin(absl::MakeConstSpan(digest, length), ":",
                       [](std::string* out, unsigned char byte) {
                         absl::StrAppend(out, absl::Hex(byte, absl::kZeroPad2));
                       });
}

Certificate Describe(const X509* certificate) {
  return {.subject = NameText(X509_get_subject_name(certificate)),
          .issuer = NameText(X509_get_issuer_name(certificate)),
          .uris = UrisOf(certificate),
          .not_before = TimeOf(X509_get0_notBefore(certificate)),
          .not_after = TimeOf(X509_get0_notAfter(certificate)),
          .sha256 = FingerprintOf(certificate)};
}

absl::Status NoCertificate(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what,
      ": got no readable certificate, want PEM text with -----BEGIN "
      "CERTIFICATE-----"));
}

}  // namespace

std::vector<OpenSslPtr<X509>> ReadPemCertificates(absl::string_view pem) {
  std::vector<OpenSslPtr<X509>> certificates;
  const OpenSslPtr<BIO> reader = MemoryReader(pem);
  while (X509* next =
             PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  // The end of the text is reported as an error.
  ERR_clear_error();
  return certificates;
}

absl::StatusOr<std::vector<Certificate>> ParseCertificates(
    absl::string_view what, absl::string_view pem) {
  std::vector<Certificate> certificates;
  for (const OpenSslPtr<X509>& certificate : ReadPemCertificates(pem)) {
    certificates.push_back(Describe(certificate.get()));
  }
  if (certificates.empty()) return NoCertificate(what);
  return certificates;
}

absl::StatusOr<Certificate> ParseDerCertificate(absl::string_view der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  const OpenSslPtr<X509> certificate(
      d2i_X509(nullptr, &bytes, static_cast<long>(der.size())));
  if (certificate != nullptr) return Describe(certificate.get());
  return absl::InvalidArgumentError(
      absl::StrCat("certificate: got damaged bytes: ", OpenSslError()));
}

absl::StatusOr<Identity> IdentityOf(absl::string_view what,
                                    const Certificate& certificate) {
  // gRPC, too, takes only the one URI of a certificate for an identity.
  if (certificate.uris.size() == 1) {
    absl::StatusOr<Identity> identity = ParseIdentity(certificate.uris.front());
    if (identity.ok()) return identity;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": got the certificate of ", certificate.subject,
                   certificate.uris.empty()
                       ? " without a URI among its names"
                       : absl::StrCat(" with the URIs ",
                                      absl::StrJoin(certificate.uris, ", ")),
                   ", want exactly one, such as "
                   "spiffe://example.org/cohort/my-run/worker/0"));
}

absl::Status CheckKey(absl::string_view certificates, absl::string_view key) {
  const std::vector<OpenSslPtr<X509>> chain = ReadPemCertificates(certificates);
  if (chain.empty()) return NoCertificate("--tls_cert");
  const OpenSslPtr<BIO> reader = MemoryReader(key);
  // An empty password, so that an encrypted key fails instead of asking the
  // terminal.
  char no_password[] = "";
  const OpenSslPtr<EVP_PKEY> parsed(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, no_password));
  if (parsed == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_key: got no readable key (", OpenSslError(),
                     "), want an unencrypted private key in PEM text"));
  }
  if (X509_check_private_key(chain.front().get(), parsed.get()) == 1) {
    return absl::OkStatus();
  }
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(
      "--tls_key: got a key that does not belong to the "
      "certificate of ",
      NameText(X509_get_subject_name(chain.front().get())), " in --tls_cert"));
}

absl::Status CheckChain(absl::string_view what, absl::string_view chain,
                        absl::string_view authorities, absl::Time now) {
  const std::vector<OpenSslPtr<X509>> certificates = ReadPemCertificates(chain);
  if (certificates.empty()) return NoCertificate(what);
  const OpenSslPtr<X509_STORE> store(X509_STORE_new());
  const std::vector<OpenSslPtr<X509>> trusted =
      ReadPemCertificates(authorities);
  for (const OpenSslPtr<X509>& authority : trusted) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  const OpenSslPtr<STACK_OF(X509)> further(sk_X509_new_null());
  for (size_t i = 1; i < certificates.size(); ++i) {
    sk_X509_push(further.get(), certificates[i].get());
  }
  const OpenSslPtr<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), certificates.front().get(),
                      further.get());
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()),
                             absl::ToTimeT(now));
  const int result = X509_verify_cert(context.get());
  ERR_clear_error();
  if (result == 1) return absl::OkStatus();
  const Certificate own = Describe(certificates.front().get());
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": the certificate of ", own.subject, " issued by ", own.issuer,
      " and valid from ", absl::FormatTime(own.not_before), " to ",
      absl::FormatTime(own.not_after), " is not accepted: ",
      X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()))));
}

}  // namespace cohort
