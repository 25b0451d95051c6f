# Compiler and linker flags of Tern's own targets. None of them reaches a program that uses Tern.

include(CheckCXXSourceCompiles)

if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14))
  message(FATAL_ERROR "Tern needs g++ 12 or clang++ 14, or newer, and ${CMAKE_CXX_COMPILER} is version "
                      "${CMAKE_CXX_COMPILER_VERSION}. Name a newer compiler with -DCMAKE_CXX_COMPILER=PATH.")
endif()

# Sanitizers and library assertions apply to the whole directory, so that dependencies built from
# source here get them too: mixing instrumented and plain code gives false reports.
if(TERN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Checked 128-bit multiplication calls __muloti4, which libgcc does not have. Unwinding stays
    # with libgcc, as in every other build.
    add_link_options(--rtlib=compiler-rt --unwindlib=libgcc)
  endif()
elseif(TERN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT TERN_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TERN_SANITIZE is '${TERN_SANITIZE}': it must be address, thread or empty.")
endif()
add_compile_definitions($<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
if(NOT TERN_QUICK_BUILD MATCHES "^(tests|all)?$")
  message(FATAL_ERROR "TERN_QUICK_BUILD is '${TERN_QUICK_BUILD}': it must be tests, all or empty.")
endif()

# Some distributions define _FORTIFY_SOURCE themselves, perhaps to a higher level; theirs stays.
set(CMAKE_REQUIRED_FLAGS "-O2")
check_cxx_source_compiles("
  #ifdef _FORTIFY_SOURCE
  #error predefined
  #endif
  int main() { return 0; }" TERN_MAY_DEFINE_FORTIFY_SOURCE)
unset(CMAKE_REQUIRED_FLAGS)

set(tern_warnings
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion
  -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align -Wcast-qual -Wformat=2
  -Wimplicit-fallthrough -Wundef -Wextra-semi -Wunused)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND tern_warnings -Wduplicated-cond -Wduplicated-branches -Wlogical-op)
endif()

function(tern_configure_target target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # Each source is compiled alone, also inside a project that puts its own together: names in
  # unnamed namespaces are a source's own, and two sources use the same ones. In quick builds
  # tern_compile_together() names those that do.
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF UNITY_BUILD OFF)
  target_compile_options(${target} PRIVATE ${tern_warnings} -fstack-protector-strong)
  if(TERN_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(TERN_MAY_DEFINE_FORTIFY_SOURCE AND NOT TERN_SANITIZE)
    target_compile_definitions(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:_FORTIFY_SOURCE=2>)
  endif()
  target_link_options(${target} PRIVATE LINKER:-z,relro,-z,now)
endfunction()

function(tern_configure_shared_library target)
  # The library has threads that may outlive any dlclose, so it is never unloaded. The export list
  # removes what visibility cannot: instantiations of standard and {fmt} templates.
  set(exports "${PROJECT_SOURCE_DIR}/cmake/tern.map")
  target_link_options(${target} PRIVATE LINKER:-z,nodelete "LINKER:--version-script=${exports}")
  if(NOT TERN_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${exports}")
endfunction()

# With TERN_QUICK_BUILD, precompiles the headers of {fmt}, the standard library and ARGN. Most of
# the includes that this hides are found by tests/structure/includes_test.py.
function(tern_precompile_headers target)
  if(NOT TERN_QUICK_BUILD)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE
    <fmt/format.h> <algorithm> <array> <atomic> <chrono> <condition_variable> <functional> <map>
    <memory> <mutex> <optional> <span> <string> <string_view> <thread> <unordered_map> <utility>
    <vector> ${ARGN})
endfunction()

# Compiles several sources of a target as one, which saves a third to a half of the time. The sources
# that are named after the target are compiled alone: a name in their unnamed namespace, or a macro,
# also stands in another source of the folder.
function(tern_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  # A name that one source declares is not hidden from the next. g++ takes the sources for headers, and
  # would complain of members whose type is in an unnamed namespace.
  target_compile_options(${target} PRIVATE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
