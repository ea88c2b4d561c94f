# The names of the flags of all programs, as an array in C++: what one program
# takes from the environment, the others must know to pass over. Read off the
# definitions, so that there is no second list to keep.
#
# cohort_flag_names(OUTPUT FILE.cc SOURCES file.cc...)
function(cohort_flag_names)
  cmake_parse_arguments(ARG "" "OUTPUT" "SOURCES" ${ARGN})
  set(names)
  foreach(source ${ARG_SOURCES})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(READ ${source} text)
    string(REGEX MATCHALL "ABSL_FLAG\\([^,]+,[ \n]*[a-z0-9_]+" flags "${text}")
    if(NOT flags)
      message(FATAL_ERROR "${source} defines no flags: has it moved?")
    endif()
    list(TRANSFORM flags REPLACE "ABSL_FLAG\\([^,]+,[ \n]*" "")
    list(APPEND names ${flags})
  endforeach()
  list(REMOVE_DUPLICATES names)
  list(SORT names)
  list(TRANSFORM names REPLACE "(.+)" "    \"\\1\"")
  list(JOIN names ",\n" lines)
  list(LENGTH names count)
  file(CONFIGURE OUTPUT ${ARG_OUTPUT} @ONLY CONTENT
"#include \"common/cli/flag_names.h\"

#include <array>

namespace cohort {
namespace {

constexpr std::array<absl::string_view, @count@> kNames = {
@lines@};

}  // namespace

absl::Span<const absl::string_view> AllFlagNames() { return kNames; }

}  // namespace cohort
")
endfunction()
