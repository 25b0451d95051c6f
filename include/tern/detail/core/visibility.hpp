// Not part of the interface.
//
// TERN_EXPORT marks the symbols that programs may link to. The library hides all other symbols.
//
// Put TERN_EXPORT on free functions, on classes with out-of-line members, and on exception types,
// whose type information must be shared between libraries. Templates and inline functions do not
// need it.

#pragma once

#define TERN_EXPORT __attribute__((visibility("default")))
