# Writes a C++ file that holds other files byte by byte.
#
#   cmake -DOUTPUT=files.cc -DFILES=/path|content type|file;... -P embed.cmake
#
# It writes bytes, because string literals have a limited length and their
# content would have to be escaped.
set(arrays "")
set(entries "")
set(index 0)
foreach(entry IN LISTS FILES)
  string(REPLACE "|" ";" parts "${entry}")
  list(GET parts 0 path)
  list(GET parts 1 type)
  string(REPLACE "<semicolon>" ";" type "${type}")
  list(GET parts 2 file)
  file(READ ${file} content HEX)
  if(content STREQUAL "")
    message(FATAL_ERROR "${file} is empty")
  endif()
  string(REGEX REPLACE "(..)" "0x\\1," content "${content}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {${content}};\n")
  string(APPEND entries
    "      {\"${path}\", \"${type}\",\n"
    "       {reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by embed.cmake.
#include \"server/status_page/page_routes.h\"

namespace cohort {
namespace {
${arrays}}  // namespace

const std::vector<EmbeddedFile>& EmbeddedFiles() {
  static const auto& files = *new std::vector<EmbeddedFile>{
${entries}  };
  return files;
}

}  // namespace cohort
")
