// TERN_EXPORT marks what programs may link to. Everything else in the library is hidden.
//
// It goes on classes with out-of-line members, on exception types (whose type information must be
// one across libraries), and on free functions. Templates and inline functions need none.

#pragma once

#define TERN_EXPORT __attribute__((visibility("default")))
