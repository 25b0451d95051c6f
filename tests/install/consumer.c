/* A program in C: it allocates from a pool of the host device. The linker is that of C++. */

#include <stdio.h>
#include <tern/c/tern.h>

int main(void) {
  tern_device* device = NULL;
  tern_resource* pool = NULL;
  void* address = NULL;
  if (tern_open_device("host", &device) != TERN_OK ||
      tern_make_pool(device, NULL, &pool) != TERN_OK ||
      tern_allocate(pool, 4096, 0, NULL, &address) != TERN_OK) {
    puts(tern_last_error());
    return 1;
  }
  printf("C, tern %s: ", tern_version());
  puts(tern_free(address, NULL) == TERN_OK && tern_free(address, NULL) == TERN_NOT_LIVE
           ? tern_last_error()
           : "?");
  tern_release_resource(pool);
  tern_release_device(device);
  return 0;
}
