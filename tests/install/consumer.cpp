// What a user's first program does: it opens a device by name, and catches an error by its
// interface. Both test projects beside this file build it.

#include <cstdio>
#include <cstring>
#include <tern/backends/catalog.hpp>
#include <tern/core/error.hpp>
#include <tern/core/version.hpp>

int main() {
  try {
    tern::Device device = tern::open_device("host");
    if (device.spec() != "host") return 1;
    // Looks for the drivers of the machine, and says of each that is not there why.
    for (const tern::BackendListing& backend : tern::list_backends()) {
      if (backend.is_available != backend.reason.empty()) return 1;
      if (!backend.is_available) std::printf("%s\n", backend.reason.c_str());
    }
  } catch (const tern::Error& error) {
    std::printf("opening 'host' failed: %s\n", error.text());
    return 1;
  }
  // The fake CUDA driver is a library of its own, and this program is linked without it.
  try {
    (void)tern::open_device("cuda:0?driver=sim");
    return 1;
  } catch (const tern::InvalidDevice& error) {
    if (std::strstr(error.text(), "tern::fake_cuda") == nullptr) return 1;
  }
  // The exception crosses from the library into the program, which must see the same type.
  try {
    (void)tern::open_device("no such device");
    return 1;
  } catch (const tern::Error& error) {
    std::printf("tern %s refuses: %s\n", TERN_VERSION, error.text());
    return 0;
  }
}
