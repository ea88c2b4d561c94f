#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "common/formats/file_system.h"
#include "common/security/authority.h"
#include "common/security/certificate.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

constexpr char kBegin[] = "-----BEGIN CERTIFICATE-----\n";
constexpr char kEnd[] = "-----END CERTIFICATE-----\n";

void CheckCertificate(const Certificate& certificate) {
  const absl::StatusOr<Identity> identity =
      IdentityOf("--tls_cert", certificate);
  RequireCode(identity.status(), {absl::StatusCode::kInvalidArgument});
  if (!identity.ok()) return;
  COHORT_CHECK(certificate.uris.size() == 1, "one of several identities");
  COHORT_CHECK(identity->Uri() == certificate.uris[0], identity->Uri());
}

void CheckPem(absl::string_view pem) {
  const absl::StatusOr<std::vector<Certificate>> certificates =
      ParseCertificates("--tls_cert", pem);
  RequireCode(certificates.status(), {absl::StatusCode::kInvalidArgument});
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  RequireCode(CheckChain("--tls_cert", pem, pem, now),
              {absl::StatusCode::kInvalidArgument});
  RequireCode(CheckKey(pem, pem), {absl::StatusCode::kInvalidArgument});
  if (!certificates.ok()) return;
  COHORT_CHECK(!certificates->empty(), "no certificate and no error");
  for (const Certificate& certificate : *certificates) {
    CheckCertificate(certificate);
  }
}

void CheckDer(absl::string_view der) {
  const absl::StatusOr<Certificate> certificate = ParseDerCertificate(der);
  RequireCode(certificate.status(), {absl::StatusCode::kInvalidArgument});
  if (certificate.ok()) CheckCertificate(*certificate);
  // The same bytes as text, so that damage inside reaches the reader of PEM.
  CheckPem(absl::StrCat(kBegin, absl::Base64Escape(der), "\n", kEnd));
}

void RunPem(absl::string_view input) {
  Reader reader(input);
  const bool text = reader.Below(2) == 0;
  text ? CheckPem(reader.Rest()) : CheckDer(reader.Rest());
}

// Certificates of an authority that is made for these seeds, so they differ
// from run to run; their shape does not.
std::vector<std::string> PemSeeds() {
  const ScratchFolder folder;
  const absl::StatusOr<Authority> authority = Authority::Create(
      RealFileSystem(), folder.File("pki"), "example.org", absl::Hours(48));
  COHORT_CHECK(authority.ok(), authority.status().ToString());
  const absl::StatusOr<TlsFiles> files = authority->Issue(
      {.domain = "example.org", .run = "demo", .role = PeerRole::kOperator},
      absl::Hours(24));
  COHORT_CHECK(files.ok(), files.status().ToString());
  std::vector<std::string> seeds;
  for (const std::string& path : {files->cert, files->key, files->ca}) {
    const absl::StatusOr<ByteRope> text =
        RealFileSystem().ReadFile(path, kAnyFileSize);
    COHORT_CHECK(text.ok(), text.status().ToString());
    seeds.push_back(absl::StrCat(std::string(1, '\0'), text->ToString()));
  }
  std::string der;
  const std::string body = absl::StrReplaceAll(
      seeds[0].substr(1), {{kBegin, ""}, {kEnd, ""}, {"\n", ""}});
  if (absl::Base64Unescape(body, &der)) seeds.push_back("\x01" + der);
  return seeds;
}

}  // namespace

Target PemTarget() {
  return {.name = "pem",
          .run = RunPem,
          .seeds = PemSeeds,
          .input_bytes_max = 2048,
          .mutations = 500};
}

}  // namespace cohort::fuzz
