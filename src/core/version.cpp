#include "tern/core/version.hpp"

namespace tern::detail {

const char library_of_version_0_2 = 0;

}  // namespace tern::detail
