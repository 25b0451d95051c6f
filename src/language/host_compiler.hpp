// Compiles kernels for the host with the C++ compiler of the system, and loads them.
//
// The compiler is a process of its own, which is started without a shell. It works in a new folder
// that only this user can enter, and which is removed afterwards. The code is for the processor of
// this machine (-march=native), and computes what the text says: no multiplication is fused with an
// addition, and signed integers wrap.
//
// Code is loaded from memory: its bytes are written to a file without a name, sealed, and loaded
// from there. So nothing can change between the check of an entry of the cache and its execution.
//
// All functions are safe to call from several threads.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "language/code_cache.hpp"
#include "tern/core/result.hpp"

namespace tern::language {

struct HostCompiler {
  std::string path;
  /// Changes whenever the compiler may make other code of a text: when it is replaced by another
  /// version, and on a machine with another processor.
  std::string identity;
};

/// Returns the compiler that TERN_CXX names, or c++, g++ or clang++, whichever is found first.
/// Fails with unsupported if there is none. May throw std::bad_alloc.
[[nodiscard]] Result<HostCompiler> try_find_host_compiler();
/// Like above. `wanted` is a path or a name, or empty; names are looked up in the folders of
/// `search_path`, which colons separate.
[[nodiscard]] Result<HostCompiler> try_find_host_compiler(std::string_view wanted,
                                                          std::string_view search_path);

/// Returns the shared object that the compiler makes of a C++ text. Fails with invalid_argument,
/// with the first error of the compiler, if the text does not compile; with file if there is no
/// folder to compile in; and with driver if the compiler does not run. `kernel` is for errors. May
/// throw std::bad_alloc.
[[nodiscard]] Result<std::vector<std::byte>> try_compile_for_host(const HostCompiler& compiler,
                                                                  std::string_view kernel,
                                                                  std::string_view text);

/// Loaded code. Copies share it, and the last one unloads it.
class HostCode {
 public:
  HostCode() noexcept = default;
  /// Takes ownership of a handle of dlopen().
  explicit HostCode(void* library);

  [[nodiscard]] bool is_loaded() const noexcept { return library_ != nullptr; }
  /// Returns the address of a function, or null.
  [[nodiscard]] void* find(const char* name) const noexcept;

 private:
  std::shared_ptr<void> library_;
};

/// Loads a shared object. Fails with unsupported if this process cannot load any, and with
/// bad_format if the bytes are not a shared object of this machine. May throw std::bad_alloc.
[[nodiscard]] Result<HostCode> try_load_host_code(std::string_view kernel,
                                                  std::span<const std::byte> object);

/// The key under which the cache has the code of a text. It refers to the arguments.
[[nodiscard]] CodeKey host_code_key(const HostCompiler& compiler, std::string_view text);

/// Finds the code of a text in the cache, or compiles the text and stores the code. May throw
/// std::bad_alloc.
[[nodiscard]] Result<HostCode> try_host_code(std::string_view kernel, std::string_view text,
                                             const CodeCache& cache = CodeCache::of_process());

}  // namespace tern::language
