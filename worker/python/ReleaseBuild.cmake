# Looks for archives that the wheel can be linked with: a build/release of the same
# compiler, without sanitizers. It is brought up to date, and COHORT_RELEASE_BUILD
# is its folder; empty: everything is compiled here. `pip install -C
# cmake.define.COHORT_USE_RELEASE_BUILD=OFF` does not look.
option(COHORT_USE_RELEASE_BUILD "Link the wheel with the archives of build/release" ON)
set(COHORT_RELEASE_BUILD)
set(release ${PROJECT_SOURCE_DIR}/build/release)
if(NOT COHORT_USE_RELEASE_BUILD OR NOT EXISTS ${release}/build.ninja)
  return()
endif()
load_cache(${release} READ_WITH_PREFIX release_
  CMAKE_BUILD_TYPE CMAKE_COMMAND CMAKE_HOME_DIRECTORY COHORT_SANITIZE)
# One compiler may have several paths.
set(wanted "set(CMAKE_CXX_COMPILER_ID \"${CMAKE_CXX_COMPILER_ID}\")"
           "set(CMAKE_CXX_COMPILER_VERSION \"${CMAKE_CXX_COMPILER_VERSION}\")")
file(GLOB compiler_files ${release}/CMakeFiles/*/CMakeCXXCompiler.cmake)
set(same_compiler FALSE)
foreach(file ${compiler_files})
  file(STRINGS ${file} lines REGEX "^set.CMAKE_CXX_COMPILER_(ID|VERSION) ")
  if(lines STREQUAL wanted)
    set(same_compiler TRUE)
  endif()
endforeach()
# The folder may have been copied from elsewhere.
if(NOT same_compiler OR NOT "${release_CMAKE_BUILD_TYPE}" STREQUAL "Release" OR
   NOT "${release_COHORT_SANITIZE}" STREQUAL "" OR NOT EXISTS "${release_CMAKE_COMMAND}" OR
   NOT "${release_CMAKE_HOME_DIRECTORY}" STREQUAL "${PROJECT_SOURCE_DIR}")
  message(STATUS "build/release is of another compiler or kind: compiles everything")
  return()
endif()
message(STATUS "Links with the archives of build/release")
# Two builds at once in one tree break each other.
file(LOCK ${release}/.quickstart-lock TIMEOUT 3600 RESULT_VARIABLE locked)
execute_process(
  COMMAND ${release_CMAKE_COMMAND} --build ${release}
    --target cohort-server cohortctl cohort_python_session cohort_build_info cohort_flags cohort_log
  RESULT_VARIABLE failed)
file(LOCK ${release}/.quickstart-lock RELEASE)
if(failed OR locked)
  message(STATUS "build/release cannot be built: compiles everything")
  return()
endif()
include(${release}/cohort-archives.cmake)
set(COHORT_RELEASE_BUILD ${release})
