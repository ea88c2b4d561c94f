#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

// jpeglib.h needs size_t and FILE before it, and jerror.h needs jpeglib.h.
#include <jerror.h>
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "worker/datasets/raster.h"

namespace cohort {
namespace {

constexpr int kJpegChannels = 3;

// libjpeg leaves through longjmp, which runs no destructors. So every object
// with a destructor lives in a JpegDecoding, outside the functions that longjmp
// crosses, and those functions hold plain values only.
struct JpegDecoding {
  jpeg_error_mgr errors = {};
  jpeg_decompress_struct jpeg = {};
  std::jmp_buf on_error = {};
  // The error, or the first warning that means damage.
  char message[JMSG_LENGTH_MAX] = {};
  bool damaged = false;
  // False for a kind of image that cannot be used.
  bool usable = true;

  Raster raster;
  // One row in libjpeg's layout, [width, channels].
  std::vector<uint8_t> row;
};

JpegDecoding& Of(j_common_ptr jpeg) {
  return *static_cast<JpegDecoding*>(jpeg->client_data);
}

void Note(j_common_ptr jpeg) {
  JpegDecoding& decoding = Of(jpeg);
  if (decoding.damaged) return;
  decoding.damaged = true;
  jpeg->err->format_message(jpeg, decoding.message);
}

[[noreturn]] void OnError(j_common_ptr jpeg) {
  Note(jpeg);
  std::longjmp(Of(jpeg).on_error, 1);
}

void OnMessage(j_common_ptr jpeg, int level) {
  // Levels from 0 on are traces.
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
      return;
    default:
      Note(jpeg);
  }
}

// True if the header was read and the image can be used.
bool ReadHeader(JpegDecoding& decoding, const uint8_t* bytes, size_t size) {
  if (setjmp(decoding.on_error) != 0) return false;
  jpeg_create_decompress(&decoding.jpeg);
  jpeg_mem_src(&decoding.jpeg, bytes, size);
  jpeg_read_header(&decoding.jpeg, TRUE);
  const J_COLOR_SPACE space = decoding.jpeg.jpeg_color_space;
  decoding.usable =
      space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB;
  return decoding.usable;
}

// Allocates the image, where longjmp cannot reach. False if it is too large.
bool MakeRoom(JpegDecoding& decoding) {
  const auto height = static_cast<int64_t>(decoding.jpeg.image_height);
  const auto width = static_cast<int64_t>(decoding.jpeg.image_width);
  if (height * width > kImagePixelsMax) return false;
  decoding.raster = {.channels = kJpegChannels,
                     .size = {.height = height, .width = width}};
  decoding.raster.pixels.resize(
      static_cast<size_t>(kJpegChannels * height * width));
  decoding.row.resize(static_cast<size_t>(kJpegChannels * width));
  return true;
}

void ReadRows(JpegDecoding& decoding) {
  if (setjmp(decoding.on_error) != 0) return;
  decoding.jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&decoding.jpeg);
  const int64_t width = decoding.raster.size.width;
  const int64_t plane = decoding.raster.size.height * width;
  while (decoding.jpeg.output_scanline < decoding.jpeg.output_height) {
    uint8_t* out = decoding.raster.pixels.data() +
                   static_cast<int64_t>(decoding.jpeg.output_scanline) * width;
    JSAMPROW row = decoding.row.data();
    jpeg_read_scanlines(&decoding.jpeg, &row, 1);
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < kJpegChannels; ++c) {
        out[c * plane + x] = row[kJpegChannels * x + c];
      }
    }
  }
  jpeg_finish_decompress(&decoding.jpeg);
}

absl::StatusOr<Raster> Decode(JpegDecoding& decoding,
                              absl::Span<const uint8_t> bytes) {
  if (ReadHeader(decoding, bytes.data(), bytes.size())) {
    if (!MakeRoom(decoding)) {
      return absl::InvalidArgumentError(
          absl::StrCat("got a JPEG image of ", decoding.jpeg.image_height, "x",
                       decoding.jpeg.image_width, ", want at most ",
                       kImagePixelsMax, " pixels"));
    }
    ReadRows(decoding);
  }
  if (decoding.damaged) {
    return absl::DataLossError(
        absl::StrCat("damaged JPEG image: ", decoding.message));
  }
  if (!decoding.usable) {
    return absl::InvalidArgumentError(
        absl::StrCat("got a JPEG image of ", decoding.jpeg.num_components,
                     " components, want 1 (grey) or 3 (colour)"));
  }
  return std::move(decoding.raster);
}

}  // namespace

absl::StatusOr<Raster> DecodeJpeg(absl::Span<const uint8_t> bytes) {
  JpegDecoding decoding;
  decoding.jpeg.err = jpeg_std_error(&decoding.errors);
  decoding.jpeg.client_data = &decoding;
  decoding.errors.error_exit = OnError;
  decoding.errors.emit_message = OnMessage;
  absl::StatusOr<Raster> raster = Decode(decoding, bytes);
  jpeg_destroy_decompress(&decoding.jpeg);
  return raster;
}

}  // namespace cohort
