#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/datasets/raster.h"

namespace cohort {
namespace {

enum class Wanted { kColours, kClassNumbers };

// libpng leaves through longjmp, which runs no destructors. So every object
// with a destructor lives in a PngDecoding, outside the functions that longjmp
// crosses, and those functions hold plain values only.
struct PngDecoding {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const uint8_t* next = nullptr;
  size_t left = 0;
  char message[200] = {};
  bool damaged = false;

  Raster raster;
  // The image in libpng's layout, [height, width, channels], and its rows.
  std::vector<uint8_t> interleaved;
  std::vector<png_bytep> rows;
};

[[noreturn]] void OnError(png_structp png, png_const_charp text) {
  auto& decoding = *static_cast<PngDecoding*>(png_get_error_ptr(png));
  decoding.damaged = true;
  std::strncpy(decoding.message, text, sizeof(decoding.message) - 1);
  png_longjmp(png, 1);
}

// libpng's warnings concern auxiliary chunks (profiles, times), not pixels.
void OnWarning(png_structp, png_const_charp) {}

void Feed(png_structp png, png_bytep out, size_t bytes) {
  auto& decoding = *static_cast<PngDecoding*>(png_get_io_ptr(png));
  if (bytes > decoding.left) png_error(png, "unexpected end of file");
  std::memcpy(out, decoding.next, bytes);
  decoding.next += bytes;
  decoding.left -= bytes;
}

void ReadHeader(PngDecoding& decoding) {
  if (setjmp(png_jmpbuf(decoding.png)) != 0) return;
  png_set_read_fn(decoding.png, &decoding, Feed);
  png_read_info(decoding.png, decoding.info);
}

// Tells libpng how to convert the pixels.
void Convert(PngDecoding& decoding, Wanted wanted) {
  if (setjmp(png_jmpbuf(decoding.png)) != 0) return;
  if (wanted == Wanted::kColours) {
    png_set_expand(decoding.png);
    png_set_strip_16(decoding.png);
    png_set_strip_alpha(decoding.png);
    png_set_gray_to_rgb(decoding.png);
  } else {
    // Unpacks to bytes; the values do not change.
    png_set_packing(decoding.png);
  }
  png_set_interlace_handling(decoding.png);
  png_read_update_info(decoding.png, decoding.info);
}

void ReadRows(PngDecoding& decoding) {
  if (setjmp(png_jmpbuf(decoding.png)) != 0) return;
  png_read_image(decoding.png, decoding.rows.data());
  // Also verifies the checksums of the chunks after the pixels.
  png_read_end(decoding.png, nullptr);
}

// Errors: InvalidArgument a kind that cannot be used.
absl::Status CheckKind(const PngDecoding& decoding, Wanted wanted) {
  const int64_t height = png_get_image_height(decoding.png, decoding.info);
  const int64_t width = png_get_image_width(decoding.png, decoding.info);
  if (height * width > kImagePixelsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("got a PNG image of ", height, "x", width,
                     ", want at most ", kImagePixelsMax, " pixels"));
  }
  if (wanted == Wanted::kColours) return absl::OkStatus();
  const int kind = png_get_color_type(decoding.png, decoding.info);
  const int bits = png_get_bit_depth(decoding.png, decoding.info);
  if ((kind == PNG_COLOR_TYPE_GRAY || kind == PNG_COLOR_TYPE_PALETTE) &&
      bits <= 8) {
    return absl::OkStatus();
  }
  const char* name = kind == PNG_COLOR_TYPE_GRAY         ? "grey"
                     : kind == PNG_COLOR_TYPE_GRAY_ALPHA ? "grey with alpha"
                                                         : "RGB";
  return absl::InvalidArgumentError(
      absl::StrCat("got a mask in ", name, " of ", bits,
                   " bits, want palette or grey of at most 8 bits, one class "
                   "number per pixel"));
}

void MakeRoom(PngDecoding& decoding) {
  const auto height =
      static_cast<int64_t>(png_get_image_height(decoding.png, decoding.info));
  const auto width =
      static_cast<int64_t>(png_get_image_width(decoding.png, decoding.info));
  const int64_t channels = png_get_channels(decoding.png, decoding.info);
  decoding.raster = {.channels = channels,
                     .size = {.height = height, .width = width}};
  decoding.interleaved.resize(static_cast<size_t>(channels * height * width));
  for (int64_t y = 0; y < height; ++y) {
    decoding.rows.push_back(decoding.interleaved.data() + y * channels * width);
  }
}

void Separate(PngDecoding& decoding) {
  const int64_t channels = decoding.raster.channels;
  if (channels == 1) {
    decoding.raster.pixels = std::move(decoding.interleaved);
    return;
  }
  const auto plane = static_cast<size_t>(decoding.raster.size.height *
                                         decoding.raster.size.width);
  decoding.raster.pixels.resize(decoding.interleaved.size());
  const uint8_t* from = decoding.interleaved.data();
  for (size_t i = 0; i < plane; ++i) {
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      decoding.raster.pixels[c * plane + i] = *from++;
    }
  }
}

absl::Status Damage(const PngDecoding& decoding) {
  return absl::DataLossError(
      absl::StrCat("damaged PNG image: ", decoding.message));
}

absl::StatusOr<Raster> Decode(PngDecoding& decoding, Wanted wanted) {
  ReadHeader(decoding);
  if (decoding.damaged) return Damage(decoding);
  if (absl::Status kind = CheckKind(decoding, wanted); !kind.ok()) return kind;
  Convert(decoding, wanted);
  if (decoding.damaged) return Damage(decoding);
  MakeRoom(decoding);
  ReadRows(decoding);
  if (decoding.damaged) return Damage(decoding);
  Separate(decoding);
  return std::move(decoding.raster);
}

absl::StatusOr<Raster> Decode(absl::Span<const uint8_t> bytes, Wanted wanted) {
  if (png_sig_cmp(bytes.data(), 0, std::min<size_t>(bytes.size(), 8)) != 0 ||
      bytes.size() < 8) {
    return absl::DataLossError("not a PNG image");
  }
  PngDecoding decoding{.next = bytes.data(), .left = bytes.size()};
  decoding.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoding,
                                        OnError, OnWarning);
  if (decoding.png == nullptr) return absl::InternalError("libpng: no memory");
  decoding.info = png_create_info_struct(decoding.png);
  absl::StatusOr<Raster> raster = absl::InternalError("libpng: no memory");
  if (decoding.info != nullptr) raster = Decode(decoding, wanted);
  png_destroy_read_struct(&decoding.png, &decoding.info, nullptr);
  return raster;
}

}  // namespace

absl::StatusOr<Raster> DecodePng(absl::Span<const uint8_t> bytes) {
  return Decode(bytes, Wanted::kColours);
}

absl::StatusOr<Raster> DecodeMask(absl::Span<const uint8_t> bytes) {
  return Decode(bytes, Wanted::kClassNumbers);
}

absl::StatusOr<Raster> DecodeImage(absl::Span<const uint8_t> bytes) {
  if (bytes.size() >= 8 && png_sig_cmp(bytes.data(), 0, 8) == 0) {
    return DecodePng(bytes);
  }
  if (bytes.size() >= 2 && bytes[0] == 0xff && bytes[1] == 0xd8) {
    return DecodeJpeg(bytes);
  }
  return absl::DataLossError(absl::StrCat(
      "got ", bytes.size(), " bytes that are neither a JPEG nor a PNG image"));
}

}  // namespace cohort
