# Finds what Tern needs from others: on the system, or in a source folder named by
# TERN_<NAME>_SOURCE. Each becomes a target tern_dependency::<name>, whichever way it was found.
# Nothing is downloaded.

set(TERN_FMT_SOURCE "" CACHE PATH "Source folder of {fmt}, if not from the system")
set(TERN_GTEST_SOURCE "" CACHE PATH "Source folder of GoogleTest, if not from the system")
set(TERN_CLI11_SOURCE "" CACHE PATH "Source folder of CLI11, if not from the system")
set(TERN_NLOHMANN_JSON_SOURCE "" CACHE PATH "Source folder of nlohmann-json, if not from the system")

# Makes tern_dependency::<name> from the headers of a source folder, after seeing that <header> is
# there: a wrong folder should fail here and not in the middle of the build.
function(tern_use_headers name variable header)
  if(NOT EXISTS "${${variable}}/include/${header}")
    message(FATAL_ERROR "${variable} is '${${variable}}', which has no include/${header}.")
  endif()
  add_library(tern_dependency::${name} INTERFACE IMPORTED)
  target_include_directories(tern_dependency::${name} SYSTEM INTERFACE "${${variable}}/include")
endfunction()

function(tern_use_package name)
  add_library(tern_dependency::${name} INTERFACE IMPORTED)
  target_link_libraries(tern_dependency::${name} INTERFACE ${ARGN})
endfunction()

# A macro, because imported targets of find_package belong to the directory that asked.
#
# src/core/fmt.cpp holds the code of {fmt} 9, and other sources only see declarations. It does not
# know what later versions need; and clang++ would make a symbol in it that clashes with {fmt}'s own
# library, which matters in what others link. There every source compiles the code it uses.
macro(tern_require_fmt)
  if(TERN_FMT_SOURCE)
    tern_use_headers(fmt TERN_FMT_SOURCE fmt/format.h)
    set(tern_fmt_folder "${TERN_FMT_SOURCE}/include")
  else()
    find_package(fmt 9 CONFIG QUIET)
    if(NOT fmt_FOUND)
      message(FATAL_ERROR "Tern needs {fmt} 9 or newer: install libfmt-dev, or set "
                          "-DTERN_FMT_SOURCE to its source folder.")
    endif()
    get_target_property(tern_fmt_folder fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
    add_library(tern_dependency::fmt INTERFACE IMPORTED)
    target_include_directories(tern_dependency::fmt SYSTEM INTERFACE ${tern_fmt_folder})
  endif()
  find_file(tern_fmt_core fmt/core.h PATHS ${tern_fmt_folder} NO_DEFAULT_PATH NO_CACHE)
  set(tern_fmt_version "")
  if(tern_fmt_core)
    file(STRINGS "${tern_fmt_core}" tern_fmt_version REGEX "^#define FMT_VERSION 9[0-9][0-9][0-9][0-9]$")
  endif()
  if(NOT tern_fmt_version OR NOT (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR TERN_SANITIZE))
    target_compile_definitions(tern_dependency::fmt INTERFACE FMT_HEADER_ONLY=1)
  endif()
endmacro()

macro(tern_require_cli11)
  if(TERN_CLI11_SOURCE)
    tern_use_headers(cli11 TERN_CLI11_SOURCE CLI/CLI.hpp)
  else()
    find_package(CLI11 CONFIG QUIET)
    if(NOT CLI11_FOUND)
      message(FATAL_ERROR "The tern command needs CLI11: install libcli11-dev, set "
                          "-DTERN_CLI11_SOURCE to its source folder, or set -DTERN_BUILD_TOOLS=OFF.")
    endif()
    tern_use_package(cli11 CLI11::CLI11)
  endif()
endmacro()

macro(tern_require_nlohmann_json)
  if(TERN_NLOHMANN_JSON_SOURCE)
    tern_use_headers(nlohmann_json TERN_NLOHMANN_JSON_SOURCE nlohmann/json.hpp)
  else()
    find_package(nlohmann_json 3 CONFIG QUIET)
    if(NOT nlohmann_json_FOUND)
      message(FATAL_ERROR "The tern command needs nlohmann-json: install nlohmann-json3-dev, set "
                          "-DTERN_NLOHMANN_JSON_SOURCE to its source folder, or set "
                          "-DTERN_BUILD_TOOLS=OFF.")
    endif()
    tern_use_package(nlohmann_json nlohmann_json::nlohmann_json)
  endif()
endmacro()

macro(tern_require_gtest)
  if(TERN_GTEST_SOURCE)
    if(NOT EXISTS "${TERN_GTEST_SOURCE}/googlemock/CMakeLists.txt")
      message(FATAL_ERROR "TERN_GTEST_SOURCE is '${TERN_GTEST_SOURCE}', which has no "
                          "googlemock/CMakeLists.txt.")
    endif()
    set(INSTALL_GTEST OFF)
    add_subdirectory("${TERN_GTEST_SOURCE}" "${PROJECT_BINARY_DIR}/googletest"
                     EXCLUDE_FROM_ALL SYSTEM)
    tern_use_package(gtest gmock_main gmock gtest)
  else()
    find_package(GTest CONFIG QUIET)
    if(NOT TARGET GTest::gmock_main)
      message(FATAL_ERROR "Tern's tests need GoogleTest: install libgtest-dev and libgmock-dev, set "
                          "-DTERN_GTEST_SOURCE to its source folder, or set -DTERN_BUILD_TESTS=OFF.")
    endif()
    tern_use_package(gtest GTest::gmock_main GTest::gmock GTest::gtest)
  endif()
endmacro()
