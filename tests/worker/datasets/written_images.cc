#include "tests/worker/datasets/written_images.h"

#include <png.h>
#include <stdlib.h>

// Needs size_t and FILE before it.
#include <jpeglib.h>

namespace cohort {
namespace {

// libpng's 16-bit values are big-endian.
std::vector<uint8_t> RowOf(const Picture& picture, int64_t y, int bits) {
  const int64_t values = picture.width * picture.channels;
  std::vector<uint8_t> row;
  for (int64_t i = 0; i < values; ++i) {
    const uint8_t value = picture.pixels[static_cast<size_t>(y * values + i)];
    row.push_back(value);
    if (bits == 16) row.push_back(value);
  }
  return row;
}

int ColourType(PngKind kind) {
  switch (kind) {
    case PngKind::kGrey:
      return PNG_COLOR_TYPE_GRAY;
    case PngKind::kGreyAlpha:
      return PNG_COLOR_TYPE_GRAY_ALPHA;
    case PngKind::kPalette:
      return PNG_COLOR_TYPE_PALETTE;
    case PngKind::kRgb:
      return PNG_COLOR_TYPE_RGB;
    case PngKind::kRgba:
      return PNG_COLOR_TYPE_RGB_ALPHA;
  }
  return -1;
}

void AppendBytes(png_structp png, png_bytep bytes, size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))
      ->append(reinterpret_cast<const char*>(bytes), count);
}

}  // namespace

Picture Plain(int64_t height, int64_t width,
              const std::vector<uint8_t>& pixel) {
  Picture picture{.height = height,
                  .width = width,
                  .channels = static_cast<int64_t>(pixel.size())};
  for (int64_t i = 0; i < height * width; ++i) {
    picture.pixels.insert(picture.pixels.end(), pixel.begin(), pixel.end());
  }
  return picture;
}

std::string JpegBytes(const Picture& picture, JpegKind kind) {
  jpeg_error_mgr errors = {};
  jpeg_compress_struct jpeg = {};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* buffer = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &buffer, &bytes);
  jpeg.image_height = static_cast<JDIMENSION>(picture.height);
  jpeg.image_width = static_cast<JDIMENSION>(picture.width);
  jpeg.input_components = static_cast<int>(picture.channels);
  jpeg.in_color_space = picture.channels == 1   ? JCS_GRAYSCALE
                        : picture.channels == 4 ? JCS_CMYK
                                                : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 100, TRUE);
  jpeg.comp_info[0].h_samp_factor = 1;
  jpeg.comp_info[0].v_samp_factor = 1;
  if (kind == JpegKind::kProgressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  for (int64_t y = 0; y < picture.height; ++y) {
    std::vector<uint8_t> row = RowOf(picture, y, 8);
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&jpeg, &pointer, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string file(reinterpret_cast<const char*>(buffer), bytes);
  free(buffer);
  return file;
}

std::string PngBytes(const Picture& picture, PngKind kind, int bits) {
  png_structp png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string file;
  png_set_write_fn(png, &file, AppendBytes, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width),
               static_cast<png_uint_32>(picture.height), bits, ColourType(kind),
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
               PNG_FILTER_TYPE_BASE);
  // Position i has the colour (i, 2 i, 3 i), to detect a reader that looks up
  // colours.
  std::vector<png_color> palette(size_t{1} << std::min(bits, 8));
  for (size_t i = 0; i < palette.size(); ++i) {
    palette[i] = {.red = static_cast<png_byte>(i),
                  .green = static_cast<png_byte>(2 * i),
                  .blue = static_cast<png_byte>(3 * i)};
  }
  if (kind == PngKind::kPalette) {
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  png_write_info(png, info);
  png_set_packing(png);
  for (int64_t y = 0; y < picture.height; ++y) {
    png_write_row(png, RowOf(picture, y, bits).data());
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::string MaskBytes(int64_t height, int64_t width,
                      const std::vector<uint8_t>& labels, PngKind kind) {
  return PngBytes(
      {.height = height, .width = width, .channels = 1, .pixels = labels},
      kind);
}

Samples ReadSamples(const Dataset& data, const SampleRequest& request) {
  const size_t n = request.indices.size();
  Samples samples;
  samples.images.resize(n * static_cast<size_t>(data.image_elements()));
  samples.labels.resize(n * static_cast<size_t>(data.labels_per_sample()));
  data.Read(request, absl::MakeSpan(samples.images),
            absl::MakeSpan(samples.labels));
  return samples;
}

}  // namespace cohort
