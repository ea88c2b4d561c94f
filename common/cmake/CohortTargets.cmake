# Defines targets: one cohort_library() or cohort_executable() for each row of
# the dependency table, sources by name, no global flags.

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
include(GNUInstallDirs)

# Compiles several sources as one, so that the headers they share are read once:
# a third of the time. Off if each file must compile on its own (preset clang).
option(COHORT_UNITY "Compile several sources of a target as one" ON)

# The compiler cache, for targets without a precompiled header. A precompiled
# header from the cache differs from a newly compiled one (the compiler writes a
# different file each time, and crashes on one that does not match), so targets
# with one do not use the cache.
find_program(COHORT_CCACHE ccache)
if(COHORT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${COHORT_CCACHE})
  set(COHORT_USES_CCACHE ON)
endif()

# Newer compilers than those that are tested have more warnings, some of them
# false: GCC 14 of LibTorch's Function::apply.
set(COHORT_COMPILER_TESTED ON)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 15))
  set(COHORT_COMPILER_TESTED OFF)
endif()
option(COHORT_WARNINGS_ARE_ERRORS "Stop at a compiler's warning" ${COHORT_COMPILER_TESTED})

# Warnings, language level and sanitizers for all of the project's targets.
add_library(cohort_options INTERFACE)
target_compile_features(cohort_options INTERFACE cxx_std_20)
target_include_directories(cohort_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(cohort_options INTERFACE
  -Wall -Wextra $<$<BOOL:${COHORT_WARNINGS_ARE_ERRORS}>:-Werror> -Wno-missing-field-initializers -fno-math-errno -ffp-contract=off
  -fstack-protector-strong
  # Set for programs too, so that they can share precompiled headers with
  # libraries.
  -fPIC
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>)
target_compile_definitions(cohort_options INTERFACE
  $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
target_link_options(cohort_options INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>
  -Wl,-z,relro,-z,now)
if(COHORT_SANITIZE)
  target_compile_options(cohort_options INTERFACE
    -fsanitize=${COHORT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(cohort_options INTERFACE -fsanitize=${COHORT_SANITIZE})
endif()

# A header that many targets include, compiled once for all of them.
# cohort_precompiled(NAME HEADERS <a.h> ... DEPS target...)
function(cohort_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(GENERATE OUTPUT ${source} CONTENT "// Carries a precompiled header.\n")
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE cohort_options ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  if(COHORT_USES_CCACHE)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "")
  endif()
endfunction()

# The settings that libraries, programs and tests share. Arguments: PCH, UNITY and
# OPTIMISE as described below.
function(cohort_configure name pch unity level)
  target_link_libraries(${name} PRIVATE cohort_options)
  if(level STREQUAL "")
    set(level 2)
  endif()
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${level}>)
  # Numeric loops take minutes in a sanitizer build without optimisation.
  if(COHORT_SANITIZE AND level EQUAL 3)
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(COHORT_UNITY)
    if(unity STREQUAL "")
      set(unity 8)
    endif()
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${unity})
  endif()
  if(pch)
    target_precompile_headers(${name} REUSE_FROM ${pch})
    if(COHORT_USES_CCACHE)
      set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "")
    endif()
  endif()
endfunction()

# cohort_library(NAME SOURCES a.cc ... [DEPS public...] [PRIVATE_DEPS ...]
#                [PCH target] [UNITY sources] [OPTIMISE level])
# PCH names a target of cohort_precompiled(). UNITY is the number of sources that
# are compiled as one, by default 8; 1 keeps them apart. OPTIMISE is the -O of a
# release, by default 2. Use 3 for numeric loops, and 1, which compiles in three
# quarters of the time, for code that waits for a person or another program.
function(cohort_library name)
  cmake_parse_arguments(ARG "" "PCH;UNITY;OPTIMISE" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(${name} PUBLIC cxx_std_20)
  cohort_configure(${name} "${ARG_PCH}" "${ARG_UNITY}" "${ARG_OPTIMISE}")
endfunction()

# Writes FILE into the build folder: the targets, and those of this project that
# they are linked with, for another build to import as release::NAME.
# cohort_export(FILE target...)
function(cohort_export file)
  set(open ${ARGN})
  set(found)
  while(open)
    list(POP_FRONT open name)
    if(NOT TARGET ${name} OR name IN_LIST found)
      continue()
    endif()
    get_target_property(imported ${name} IMPORTED)
    if(imported)
      continue()
    endif()
    list(APPEND found ${name})
    get_target_property(linked ${name} INTERFACE_LINK_LIBRARIES)
    if(NOT linked)
      continue()
    endif()
    # Private ones of an archive are $<LINK_ONLY:name>.
    string(REGEX REPLACE "\\$<LINK_ONLY:([^>]*)>" "\\1" linked "${linked}")
    list(APPEND open ${linked})
  endwhile()
  export(TARGETS ${found} NAMESPACE release:: FILE ${CMAKE_BINARY_DIR}/${file})
endfunction()

# cohort_executable(NAME SOURCES main.cc DEPS ... [INSTALL] [PCH target]
#                   [UNITY sources] [OPTIMISE level])
function(cohort_executable name)
  cmake_parse_arguments(ARG "INSTALL" "PCH;UNITY;OPTIMISE" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  cohort_configure(${name} "${ARG_PCH}" "${ARG_UNITY}" "${ARG_OPTIMISE}")
  if(ARG_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
            COMPONENT ${name})
  endif()
endfunction()

# cohort_test(NAME SOURCES a_test.cc ... DEPS ... [LABELS ...] [TIMEOUT s]
#             [PCH target] [UNITY sources] [OPTIMISE level])
# One CTest entry a binary. TIMEOUT defaults to 900 s: it ends what hangs, on a
# busy machine and under a sanitizer too. OPTIMISE defaults to 1, which is for the
# test's own sources only. A label part:NAME leaves the test to that part
# of tests/run.
function(cohort_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PCH;UNITY;OPTIMISE" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(NOT ARG_OPTIMISE)
    set(ARG_OPTIMISE 1)
  endif()
  cohort_executable(${name} SOURCES ${ARG_SOURCES}
    DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main
    PCH "${ARG_PCH}" UNITY "${ARG_UNITY}" OPTIMISE ${ARG_OPTIMISE})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "COHORT_SOURCE_DIR=${PROJECT_SOURCE_DIR};COHORT_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()
