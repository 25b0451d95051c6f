// A kernel that is a Python function, for the host and the simulated device.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/core/access.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/operations.hpp"

namespace tern::python {

/// Owns the memory of a launch. Arrays that the function keeps share it.
struct LaunchedMemory {
  std::mutex mutex;
  std::vector<StorageHandle> storages;  // guarded by the mutex
};

/// An argument as the function gets it: an array over memory, or the value itself.
struct FunctionArgument {
  bool is_memory = false;
  nb::object value;
  Shape shape;
  DType dtype = DType::void_;
  Access access = Access::read;
};

/// One launch that has not run yet. Made and destroyed with the interpreter lock.
struct FunctionLaunch {
  std::vector<FunctionArgument> arguments;
  std::shared_ptr<LaunchedMemory> memory = std::make_shared<LaunchedMemory>();
  CallSite site;
  DeviceId device = {};
  StreamId stream = {};
  bool is_on_host = false;
};

/// The state of a kernel. It lives as long as the Kernel object, and as long as a launch is
/// pending.
class PythonKernel : public std::enable_shared_from_this<PythonKernel> {
 public:
  PythonKernel(nb::object function, std::string name);
  ~PythonKernel();

  /// Keeps a launch until it runs. Returns its number, which is the last argument of the launch.
  [[nodiscard]] std::uint64_t add(std::unique_ptr<FunctionLaunch> launch);
  /// Forgets a launch that was not submitted.
  void drop(std::uint64_t number);

  [[nodiscard]] const nb::object& function() const noexcept { return function_; }

  /// The body of the kernel. The context is the PythonKernel.
  static void run(const KernelCall& call);

 private:
  struct Pending;

  nb::object function_;
  std::string name_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace tern::python
