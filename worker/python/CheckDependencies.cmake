# Looks for everything that the wheel is built from, and says at once what is
# missing: pip shows only the end of CMake's output, and CMake stops at the first
# package. Files are looked for instead of packages, because some packages cannot
# be looked for twice. COHORT_SKIP_DEPS=1 leaves it out.
if("$ENV{COHORT_SKIP_DEPS}" STREQUAL "1")
  return()
endif()

set(missing)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('include'))"
  OUTPUT_VARIABLE python_headers OUTPUT_STRIP_TRAILING_WHITESPACE)

# `debian` is the package that has the file `name` in a folder `suffix`.
function(cohort_wheel_needs debian suffix name)
  find_file(COHORT_WHEEL_FILE_${debian} ${name}
    PATH_SUFFIXES ${suffix}
    PATHS ENV PATH ${python_headers} /usr/share/javascript)
  if(NOT COHORT_WHEEL_FILE_${debian})
    set(missing ${missing} ${debian} PARENT_SCOPE)
  endif()
endfunction()

cohort_wheel_needs(pkg-config "" pkg-config)
cohort_wheel_needs(protobuf-compiler "" protoc)
cohort_wheel_needs(protobuf-compiler-grpc "" grpc_cpp_plugin)
cohort_wheel_needs(libabsl-dev absl/base config.h)
cohort_wheel_needs(libprotobuf-dev google/protobuf message.h)
cohort_wheel_needs(libgrpc++-dev grpcpp grpcpp.h)
cohort_wheel_needs(nlohmann-json3-dev nlohmann json.hpp)
cohort_wheel_needs(libhwy-dev hwy highway.h)
cohort_wheel_needs(prometheus-cpp-dev prometheus registry.h)
cohort_wheel_needs(libmicrohttpd-dev "" microhttpd.h)
cohort_wheel_needs(libssl-dev openssl ssl.h)
cohort_wheel_needs(libgnutls28-dev gnutls gnutls.h)
cohort_wheel_needs(libxxhash-dev "" xxhash.h)
cohort_wheel_needs(zlib1g-dev "" zlib.h)
cohort_wheel_needs(libjs-chart.js chart.js chart.min.js)
cohort_wheel_needs(python3-dev "" Python.h)

if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR
    "Cohort cannot be built: these packages are missing (Debian's names): ${missing}\n"
    "On Debian 12 install them with deploy/install-deps python.")
endif()
