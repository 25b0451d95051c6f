// The version of the headers that a program was compiled with.
//
// The build reads the version from this file, so that the package, the shared library and the
// headers always have the same version.

#pragma once

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0

/// The three numbers above as text. The build fails at configure time if they differ.
#define TERN_VERSION "0.1.0"
