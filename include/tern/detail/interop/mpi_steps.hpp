// Not part of the interface.
//
// Transfers in flight while the program does other work. A transfer is a coroutine, Steps<T>, which
// awaits other Steps, and until() with a function that returns whether the transfer can advance. A
// Progress holds the transfers of a communicator. A wait for one transfer advances all transfers,
// so two ranks that wait for different transfers do not deadlock.
//
// There are no threads: one thread at a time may use a Progress and its transfers.

#pragma once

#include <coroutine>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tern::mpi::detail {

/// The position of a transfer: its innermost coroutine, and what this coroutine waits for.
struct Course {
  std::coroutine_handle<> innermost = {};
  std::function<bool()> can_go_on = {};
  std::exception_ptr error = {};  // of can_go_on, for the coroutine that awaits it
};

struct StepsPromise {
  Course* course = nullptr;
  std::coroutine_handle<> caller = {};
  std::exception_ptr error = {};

  /// Returns to the loop of advance(), which resumes the caller. A jump from one coroutine into
  /// another would need a tail call, which no compiler promises without optimization.
  struct Final {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      StepsPromise& promise = ended.promise();
      promise.course->innermost = promise.caller;
    }
    void await_resume() const noexcept {}
  };

  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] Final final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }
};

template <class T>
struct ResultPromise : StepsPromise {
  std::optional<T> result = {};
  void return_value(T value) { result.emplace(std::move(value)); }
  [[nodiscard]] T take() { return std::move(*result); }
};
template <>
struct ResultPromise<void> : StepsPromise {
  void return_void() const noexcept {}
  void take() const noexcept {}
};

/// A coroutine that has not begun, or waits. Destroying it destroys its local variables.
template <class T = void>
class [[nodiscard]] Steps {
 public:
  struct promise_type : ResultPromise<T> {
    [[nodiscard]] Steps get_return_object() noexcept {
      return Steps(std::coroutine_handle<promise_type>::from_promise(*this));
    }
  };

  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&&) = delete;
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  /// Begins the coroutine with the next advance().
  void begin(Course& course) noexcept {
    handle_.promise().course = &course;
    course.innermost = handle_;
  }
  [[nodiscard]] bool is_over() const noexcept { return handle_.done(); }
  /// Returns the result of a coroutine that is over. Throws what it has thrown.
  T take() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.promise().take();
  }

  // For co_await.
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> caller) noexcept {
    handle_.promise().caller = caller;
    begin(*caller.promise().course);
  }
  T await_resume() { return take(); }

 private:
  explicit Steps(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

/// Waits until the function returns true. If the function throws, the coroutine throws.
class [[nodiscard]] until {
 public:
  explicit until(std::function<bool()> is_ready) : is_ready_(std::move(is_ready)) {}

  [[nodiscard]] bool await_ready() { return is_ready_(); }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> caller) {
    course_ = caller.promise().course;
    course_->innermost = caller;
    course_->can_go_on = std::move(is_ready_);
  }
  void await_resume() {
    if (course_ != nullptr && course_->error) {
      std::rethrow_exception(std::exchange(course_->error, nullptr));
    }
  }

 private:
  std::function<bool()> is_ready_;
  Course* course_ = nullptr;
};

/// One transfer in flight.
struct Transfer {
  Course course = {};
  Steps<> steps;
  std::string what;
  bool is_over = false;

  Transfer(Steps<> all, std::string description)
      : steps(std::move(all)), what(std::move(description)) {
    steps.begin(course);
  }

  /// Advances as far as possible without a wait. Returns whether the transfer is over.
  bool advance() {
    while (!is_over) {
      if (course.can_go_on) {
        try {
          if (!course.can_go_on()) return false;
        } catch (...) {
          course.error = std::current_exception();
        }
        course.can_go_on = nullptr;
      }
      course.innermost.resume();
      is_over = steps.is_over();
    }
    return true;
  }
};

/// The transfers of a communicator. Collectives run one after the other, because all ranks must
/// make their calls of MPI in one order.
class Progress {
 public:
  void add(std::shared_ptr<Transfer> transfer, bool is_collective) {
    if (is_collective) {
      collectives_.push_back(std::move(transfer));
    } else {
      in_flight_.push_back(std::move(transfer));
    }
  }
  void advance() {
    std::erase_if(in_flight_, [](const auto& one) { return one->advance(); });
    while (!collectives_.empty() && collectives_.front()->advance()) collectives_.pop_front();
  }
  [[nodiscard]] std::size_t count() const noexcept {
    return in_flight_.size() + collectives_.size();
  }

 private:
  std::vector<std::shared_ptr<Transfer>> in_flight_;
  std::deque<std::shared_ptr<Transfer>> collectives_;
};

/// Runs several transfers side by side. Throws the first error after all of them have ended.
inline Steps<> together(std::vector<std::unique_ptr<Transfer>> parts) {
  co_await until([&parts] {
    bool is_over = true;
    for (const auto& part : parts) is_over = part->advance() && is_over;
    return is_over;
  });
  for (const auto& part : parts) part->steps.take();
}

}  // namespace tern::mpi::detail
