#include "common/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace cohort {
namespace {

TEST(PrintableTest, OrdinaryTextStays) {
  for (const std::string text :
       {"", "layer1.0.conv.weight", "a\\b", "Grüße", "日本語", "😀"}) {
    EXPECT_EQ(Printable(text), text);
    EXPECT_TRUE(IsPrintable(text));
  }
}

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(Printable(absl::string_view("a\0b\n\r\t\x7f", 7)),
            "a\\x00b\\x0a\\x0d\\x09\\x7f");
  // U+009B starts an escape sequence as ESC [ does.
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\u{9b}2J");
  EXPECT_FALSE(IsPrintable("\xc2\x85"));
}

TEST(PrintableTest, DirectionsAndSeparatorsAreEscaped) {
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "abc"),
            "\\u{202e}abc");
  EXPECT_EQ(Printable("\xe2\x81\xa6"), "\\u{2066}");
  EXPECT_EQ(Printable("\xd8\x9c"), "\\u{61c}");
  EXPECT_EQ(Printable("\xe2\x80\xa8"), "\\u{2028}");
}

TEST(PrintableTest, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("\x9b"), "\\x9b");
  // Cut off, overlong, a surrogate, beyond Unicode.
  EXPECT_EQ(Printable("\xe2\x80"), "\\xe2\\x80");
  EXPECT_EQ(Printable("\xc0\x8a"), "\\xc0\\x8a");
  EXPECT_EQ(Printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

}  // namespace
}  // namespace cohort
