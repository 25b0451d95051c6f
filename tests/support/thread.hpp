// A thread of a test. An exception that leaves its function is a failure of the test, with the text
// of the exception; std::thread would end the process, and every other test with it. The destructor
// asks the function to stop, if it takes a std::stop_token, and joins.

#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>

namespace tern::test {

class Thread {
 public:
  Thread() = default;
  template <typename Function, typename... Arguments>
  requires(!std::is_same_v<std::decay_t<Function>, Thread>) explicit Thread(
      Function&& function, Arguments&&... arguments)
      : thread_(
            [](const std::stop_token& stop, auto run, auto... values) {
              try {
                if constexpr (std::is_invocable_v<decltype(run), std::stop_token,
                                                  decltype(values)...>) {
                  std::invoke(std::move(run), stop, std::move(values)...);
                } else {
                  std::invoke(std::move(run), std::move(values)...);
                }
              } catch (const std::exception& error) {
                ADD_FAILURE() << "an exception left a thread of the test: " << error.what();
              } catch (...) {
                ADD_FAILURE() << "an exception left a thread of the test.";
              }
            },
            std::forward<Function>(function), std::forward<Arguments>(arguments)...) {}

  void join() { thread_.join(); }
  [[nodiscard]] bool joinable() const noexcept { return thread_.joinable(); }

 private:
  std::jthread thread_;
};

}  // namespace tern::test
