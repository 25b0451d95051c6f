// The two ways an operation fails: a value that is returned, or an exception that is caught by its
// own type, by tern::Error, or by the standard type it also is.

#include <cstdio>
#include <new>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>

int main() {
  const tern::Device device = tern::open_device("host");
  const std::size_t petabyte = std::size_t{1} << 50;

  // As a value: nothing is thrown and nothing is allocated to say no.
  const tern::Result<void*> refused = device.try_allocate(tern::MemoryKind::device, petabyte);
  if (refused) return 1;
  std::printf("returned: %s\n", refused.failure().text().c_str());
  std::printf("          requested = %s\n",
              tern::format_bytes(refused.failure().number("requested").value_or(0)).c_str());

  // As an exception, here caught as the standard one.
  try {
    static_cast<void>(device.allocate(tern::MemoryKind::device, petabyte));
  } catch (const std::bad_alloc& error) {
    std::printf("thrown:   %s\n", error.what());
  }

  // A wrong device name says what would be right.
  try {
    static_cast<void>(tern::open_device("cuda:zero"));
  } catch (const tern::InvalidDevice& error) {
    std::printf("thrown:   %s\n", error.what());
    return 0;
  }
  return 1;
}
