# How targets are made here: one cohort_library() or cohort_executable() for
# each row of the dependency table, sources by name, no global flags.

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
include(GNUInstallDirs)

# The compiler cache, for what has no precompiled header. A precompiled header
# out of the cache is not the one the next compile would have made (the compiler
# writes a different file each time, and crashes on one that does not fit), so
# those targets are compiled afresh.
find_program(COHORT_CCACHE ccache)
if(COHORT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${COHORT_CCACHE})
  set(COHORT_USES_CCACHE ON)
endif()

function(cohort_precompile name)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  if(COHORT_USES_CCACHE)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "")
  endif()
endfunction()

# Off where a compiler that nobody tried yet knows more warnings.
option(COHORT_WARNINGS_ARE_ERRORS "Stop at a compiler's warning" ON)

# Warnings, language level and sanitizers of every target of ours.
add_library(cohort_options INTERFACE)
target_compile_features(cohort_options INTERFACE cxx_std_20)
target_include_directories(cohort_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(cohort_options INTERFACE
  -Wall -Wextra $<$<BOOL:${COHORT_WARNINGS_ARE_ERRORS}>:-Werror> -Wno-missing-field-initializers -fno-math-errno -ffp-contract=off
  -fstack-protector-strong
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>)
target_compile_definitions(cohort_options INTERFACE
  $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
target_link_options(cohort_options INTERFACE -Wl,-z,relro,-z,now)
if(COHORT_SANITIZE)
  target_compile_options(cohort_options INTERFACE
    -fsanitize=${COHORT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(cohort_options INTERFACE -fsanitize=${COHORT_SANITIZE})
endif()

# cohort_library(NAME SOURCES a.cc ... [DEPS public...] [PRIVATE_DEPS ...]
#                [PCH header...])
function(cohort_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS;PCH" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE cohort_options ${ARG_PRIVATE_DEPS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(ARG_PCH)
    cohort_precompile(${name} ${ARG_PCH})
  endif()
endfunction()

# cohort_executable(NAME SOURCES main.cc DEPS ... [INSTALL])
function(cohort_executable name)
  cmake_parse_arguments(ARG "INSTALL" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cohort_options ${ARG_DEPS})
  if(ARG_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
            COMPONENT ${name})
  endif()
endfunction()

# cohort_test(NAME SOURCES a_test.cc ... DEPS ... [LABELS ...] [TIMEOUT s]
#             [PCH header...])
# One CTest entry a binary. TIMEOUT defaults to 300 s.
function(cohort_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;PCH" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cohort_options ${ARG_DEPS}
                        GTest::gmock GTest::gtest_main)
  if(ARG_PCH)
    cohort_precompile(${name} ${ARG_PCH})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "COHORT_SOURCE_DIR=${PROJECT_SOURCE_DIR};COHORT_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()
