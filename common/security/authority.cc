#include "common/security/authority.h"

#include <openssl/rand.h>

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/byte_rope.h"
#include "common/security/certificate.h"
#include "common/security/openssl_handles.h"
#include "common/security/small_file.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int kKeyMode = 0600;
constexpr int kFolderMode = 0700;
// X.509 version 3.
constexpr long kVersion3 = 2;
// Clocks of machines differ.
constexpr absl::Duration kClockMargin = absl::Minutes(5);
constexpr int64_t kCertificateBytesMax = int64_t{1} << 20;
// A common name has 64 characters at most.
constexpr size_t kDomainShownMax = 38;

absl::Status Failed(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("certs: ", what, " failed: ", OpenSslError()));
}

std::string FolderName(const Identity& identity) {
  const std::string role(PeerRoleName(identity.role));
  if (identity.number.has_value()) {
    return absl::StrCat(role, "-", *identity.number);
  }
  return identity.role == PeerRole::kWorker ? absl::StrCat(role, "-any") : role;
}

absl::StatusOr<OpenSslPtr<EVP_PKEY>> NewKey() {
  OpenSslPtr<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("making a key");
  return key;
}

std::string ToPem(const OpenSslPtr<BIO>& writer) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(writer.get(), &data);
  return std::string(data, static_cast<size_t>(length));
}

std::string CertificatePem(X509* certificate) {
  const OpenSslPtr<BIO> writer(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(writer.get(), certificate);
  return ToPem(writer);
}

std::string KeyPem(EVP_PKEY* key) {
  const OpenSslPtr<BIO> writer(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(writer.get(), key, nullptr, nullptr, 0, nullptr,
                           nullptr);
  return ToPem(writer);
}

absl::Status AddExtension(X509* certificate, X509* issuer, int name,
                          const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, &context, name, value.c_str());
  const bool added =
      extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added ? absl::OkStatus() : Failed("adding an extension");
}

// 126 random bits: positive, and never the same twice.
absl::Status SetSerial(X509* certificate) {
  BIGNUM* number = BN_new();
  const bool set =
      BN_rand(number, 126, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
      BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set ? absl::OkStatus() : Failed("making a serial number");
}

struct Subject {
  std::string common_name;
  std::string organization;
};

// A certificate without extensions and signature.
absl::StatusOr<OpenSslPtr<X509>> Draft(EVP_PKEY* key, const Subject& subject,
                                       absl::Duration lifetime) {
  OpenSslPtr<X509> certificate(X509_new());
  const absl::Time now = absl::Now();
  X509_set_version(certificate.get(), kVersion3);
  COHORT_RETURN_IF_ERROR(SetSerial(certificate.get()));
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()),
                absl::ToTimeT(now - kClockMargin));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()),
                absl::ToTimeT(now + lifetime));
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const auto add = [name](const char* field, const std::string& text) {
    X509_NAME_add_entry_by_txt(
        name, field, MBSTRING_UTF8,
        reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1, 0);
  };
  add("O", subject.organization);
  add("CN", subject.common_name);
  return certificate;
}

// A different name for each authority, so that texts with the issuer tell one
// from another: "Cohort authority example.org 1f0a93c2".
absl::StatusOr<std::string> AuthorityName(const std::string& domain) {
  std::array<unsigned char, 4> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
    return Failed("getting random bytes");
  }
  return absl::StrCat(
      "Cohort authority ", domain.substr(0, kDomainShownMax), " ",
      absl::BytesToHexString(absl::string_view(
          reinterpret_cast<const char*>(random.data()), random.size())));
}

absl::Status Sign(X509* certificate, EVP_PKEY* key) {
  return X509_sign(certificate, key, EVP_sha256()) > 0 ? absl::OkStatus()
                                                       : Failed("signing");
}

absl::Status WritePem(FileSystem& files, const std::string& path, int mode,
                      const std::string& pem) {
  return WriteFileAtomically(files, path, mode, pem);
}

std::string OrganizationOf(const X509* certificate) {
  char text[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate),
                            NID_organizationName, text, sizeof text);
  return text;
}

}  // namespace

struct Authority::Keys {
  OpenSslPtr<X509> certificate;
  OpenSslPtr<EVP_PKEY> key;
  std::string pem;
};

Authority::Authority(FileSystem& files, std::string folder, std::string domain,
                     std::unique_ptr<Keys> keys)
    : files_(&files),
      folder_(std::move(folder)),
      domain_(std::move(domain)),
      keys_(std::move(keys)) {}

Authority::Authority(Authority&&) noexcept = default;
Authority& Authority::operator=(Authority&&) noexcept = default;
Authority::~Authority() = default;

absl::StatusOr<Authority> Authority::Create(FileSystem& files,
                                            const std::string& folder,
                                            const std::string& domain,
                                            absl::Duration lifetime) {
  // Also checks the spelling of the domain.
  COHORT_RETURN_IF_ERROR(
      ParseIdentity(Identity{.domain = domain, .run = "run"}.Uri()).status());
  COHORT_RETURN_IF_ERROR(files.MakeDirectory(folder, kFolderMode));
  const std::string key_path = absl::StrCat(folder, "/ca.key");
  const std::string cert_path = absl::StrCat(folder, "/ca.crt");
  // An authority without its key is one whose key is kept elsewhere.
  for (const std::string& path : {key_path, cert_path}) {
    if (absl::IsNotFound(files.ReadFile(path, kAnyFileSize).status())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " has an authority already (", path,
                     "); use `cohortctl certs issue`, or another --dir"));
  }
  auto keys = std::make_unique<Keys>();
  COHORT_ASSIGN_OR_RETURN(keys->key, NewKey());
  COHORT_ASSIGN_OR_RETURN(const std::string name, AuthorityName(domain));
  COHORT_ASSIGN_OR_RETURN(
      keys->certificate,
      Draft(keys->key.get(), {.common_name = name, .organization = domain},
            lifetime));
  X509* const own = keys->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  COHORT_RETURN_IF_ERROR(AddExtension(own, own, NID_basic_constraints,
                                      "critical,CA:TRUE,pathlen:0"));
  COHORT_RETURN_IF_ERROR(
      AddExtension(own, own, NID_key_usage, "critical,keyCertSign"));
  COHORT_RETURN_IF_ERROR(
      AddExtension(own, own, NID_subject_key_identifier, "hash"));
  COHORT_RETURN_IF_ERROR(Sign(own, keys->key.get()));
  keys->pem = CertificatePem(own);
  COHORT_RETURN_IF_ERROR(
      WritePem(files, key_path, kKeyMode, KeyPem(keys->key.get())));
  COHORT_RETURN_IF_ERROR(
      WritePem(files, cert_path, kPublicFileMode, keys->pem));
  return Authority(files, folder, domain, std::move(keys));
}

absl::StatusOr<Authority> Authority::Open(FileSystem& files,
                                          const std::string& folder) {
  const absl::StatusOr<std::string> cert =
      ReadSmallFile("--dir", absl::StrCat(folder, "/ca.crt"));
  const absl::StatusOr<std::string> key =
      ReadSmallFile("--dir", absl::StrCat(folder, "/ca.key"));
  if (!cert.ok() || !key.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        (cert.ok() ? key : cert).status().message(),
        "\n`cohortctl certs init --dir=", folder, "` makes an authority"));
  }
  auto keys = std::make_unique<Keys>();
  const OpenSslPtr<BIO> cert_reader = MemoryReader(*cert);
  keys->certificate.reset(
      PEM_read_bio_X509(cert_reader.get(), nullptr, nullptr, nullptr));
  const OpenSslPtr<BIO> key_reader = MemoryReader(*key);
  keys->key.reset(
      PEM_read_bio_PrivateKey(key_reader.get(), nullptr, nullptr, nullptr));
  if (keys->certificate == nullptr || keys->key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": ca.crt or ca.key is damaged"));
  }
  keys->pem = *cert;
  const std::string domain = OrganizationOf(keys->certificate.get());
  return Authority(files, folder, domain, std::move(keys));
}

TlsFiles Authority::FilesOf(const Identity& identity) const {
  const std::string own = absl::StrCat(folder_, "/", FolderName(identity));
  return {.cert = absl::StrCat(own, "/tls.crt"),
          .key = absl::StrCat(own, "/tls.key"),
          .ca = absl::StrCat(own, "/ca.crt")};
}

absl::Status Authority::CheckFree(const Identity& identity) const {
  const std::string path = FilesOf(identity).cert;
  const absl::StatusOr<ByteRope> found =
      files_->ReadFile(path, kCertificateBytesMax);
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(found.status());
  const auto certificates = ParseCertificates(path, found->ToString());
  const absl::StatusOr<Identity> seen =
      certificates.ok() ? IdentityOf(path, certificates->front())
                        : certificates.status();
  if (seen.ok() && *seen == identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      seen.ok()
          ? absl::StrCat(path, ": got the files of ", seen->Uri(),
                         ", want a folder without those of another run "
                         "than ",
                         identity.run)
          : absl::StrCat(path, " is there and is no certificate of ",
                         identity.Uri(), " (", seen.status().message(), ")"));
}

absl::StatusOr<TlsFiles> Authority::Issue(const Identity& identity,
                                          absl::Duration lifetime) const {
  COHORT_ASSIGN_OR_RETURN(const auto authority,
                          ParseCertificates("ca.crt", keys_->pem));
  if (absl::Now() + lifetime > authority.front().not_after) {
    return absl::InvalidArgumentError(
        absl::StrCat("--days: got a lifetime beyond that of the authority, "
                     "which ends at ",
                     absl::FormatTime(authority.front().not_after)));
  }
  COHORT_ASSIGN_OR_RETURN(const OpenSslPtr<EVP_PKEY> key, NewKey());
  COHORT_ASSIGN_OR_RETURN(const OpenSslPtr<X509> certificate,
                          Draft(key.get(),
                                {.common_name = absl::StrCat(
                                     identity.run, " ", FolderName(identity)),
                                 .organization = domain_},
                                lifetime));
  X509* const made = certificate.get();
  X509* const issuer = keys_->certificate.get();
  X509_set_issuer_name(made, X509_get_subject_name(issuer));
  COHORT_RETURN_IF_ERROR(
      AddExtension(made, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  COHORT_RETURN_IF_ERROR(
      AddExtension(made, issuer, NID_key_usage, "critical,digitalSignature"));
  COHORT_RETURN_IF_ERROR(
      AddExtension(made, issuer, NID_ext_key_usage, "serverAuth,clientAuth"));
  COHORT_RETURN_IF_ERROR(
      AddExtension(made, issuer, NID_authority_key_identifier, "keyid"));
  // The names of this machine, for browsers and Prometheus, which check them.
  const bool has_pages =
      identity.role == PeerRole::kServer || identity.role == PeerRole::kWorker;
  const std::string hosts = has_pages ? ",DNS:localhost,IP:127.0.0.1" : "";
  COHORT_RETURN_IF_ERROR(
      AddExtension(made, issuer, NID_subject_alt_name,
                   absl::StrCat("URI:", identity.Uri(), hosts)));
  COHORT_RETURN_IF_ERROR(Sign(made, keys_->key.get()));
  const TlsFiles paths = FilesOf(identity);
  COHORT_RETURN_IF_ERROR(files_->MakeDirectory(
      absl::StrCat(folder_, "/", FolderName(identity)), kFolderMode));
  // The key comes first: for a moment it does not fit the certificate, which
  // readers notice and then read both again.
  COHORT_RETURN_IF_ERROR(
      WritePem(*files_, paths.key, kKeyMode, KeyPem(key.get())));
  COHORT_RETURN_IF_ERROR(
      WritePem(*files_, paths.cert, kPublicFileMode, CertificatePem(made)));
  COHORT_RETURN_IF_ERROR(
      WritePem(*files_, paths.ca, kPublicFileMode, keys_->pem));
  return paths;
}

}  // namespace cohort
