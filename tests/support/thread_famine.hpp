// While a ThreadFamine lives, no thread can be started in this process, because the default stack
// size is larger than all memory.

#pragma once

#include <pthread.h>

#include <cstddef>

namespace tern::test {

class ThreadFamine {
 public:
  ThreadFamine() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t endless;
    pthread_attr_init(&endless);
    pthread_attr_setstacksize(&endless, std::size_t{1} << 60);
    pthread_setattr_default_np(&endless);
    pthread_attr_destroy(&endless);
  }
  ThreadFamine(const ThreadFamine&) = delete;
  ThreadFamine& operator=(const ThreadFamine&) = delete;
  ~ThreadFamine() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace tern::test
