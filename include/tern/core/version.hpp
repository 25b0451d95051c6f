// The version of the headers a program was compiled with. The build reads it from here, so that
// the package, the shared library and the headers cannot disagree.

#pragma once

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0

/// The three numbers above as text; the build refuses to configure if they differ.
#define TERN_VERSION "0.1.0"
