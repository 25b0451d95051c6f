// The version of the headers that a program was compiled with.
//
// The build reads the version from this file, so that the package, the shared library and the
// headers always have the same version.

#pragma once

#include "tern/detail/core/visibility.hpp"

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 2
#define TERN_VERSION_PATCH 0

/// The three numbers above as text. The build fails at configure time if they differ.
#define TERN_VERSION "0.2.0"

namespace tern::detail {

/// Only the library of these headers defines this name. A program that is compiled with the headers
/// of one Tern and linked with the library of another does not link, and the linker prints this
/// name.
TERN_EXPORT extern const char library_of_version_0_2;

/// Makes every program that includes this header refer to the name.
[[gnu::used, gnu::visibility("hidden")]] inline const char* const linked_library =
    &library_of_version_0_2;

}  // namespace tern::detail
