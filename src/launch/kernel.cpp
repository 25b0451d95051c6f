// try_launch_with() checks the arguments and records their uses: in(), out() and inout()
// (launch/argument.hpp) say what the kernel reads and writes. UseScope::try_begin() (use_scope.cpp)
// makes the stream wait for earlier uses; UseRecord::try_begin() (buffer/use_record.cpp) decides
// for which. Arguments whose memory must move first: moved_arguments.cpp.

#include "tern/launch/kernel.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "language/parser.hpp"
#include "launch/captured_uses.hpp"
#include "launch/kernel_state.hpp"
#include "launch/moved_arguments.hpp"
#include "launch/portable_arguments.hpp"
#include "launch/reduction_passes.hpp"
#include "launch/text_lines.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/launch/use_scope.hpp"
#include "trace/recording.hpp"

namespace tern {

namespace {

/// Kernels without handles whose launches are in flight. A lock-free stack that is taken as a
/// whole, so a forked child cannot find a lock held.
std::atomic<KernelState*> waiting = nullptr;

void wait_for(KernelState* state) noexcept {
  state->next = waiting.load(std::memory_order_relaxed);
  while (!waiting.compare_exchange_weak(state->next, state, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

void end(KernelState* state) noexcept {
  if (state->native.value != 0 && !state->are_launches_done()) {
    // Without a handle, because pending unloads must not keep a device open. When the device
    // closes, it completes its work and unloads the rest.
    const Device closing = std::exchange(state->device, Device());
    wait_for(state);
    return;
  }
  const std::unique_ptr<KernelState> gone(state);
  gone->device.unload_kernel(gone->native);
  gone->device.unload_kernel(gone->combine);  // ignored if there is none
}

Failure no_kernel(CallSite site) noexcept {
  return Failure(
             ErrorCode::invalid_argument,
             "the kernel is empty: it was default-constructed or moved from. Load a kernel first.",
             site)
      .with("name", "kernel")
      .with("value", "none");
}

std::string_view spec_of(StreamRef stream) noexcept {
  // The spec lives as long as the device, so no copy is needed.
  return stream.is_usable() ? stream.device().spec() : std::string_view("no device");
}

Result<void> check_stream(const KernelState& kernel, StreamRef stream, CallSite site) noexcept {
  if (!stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  if (stream.device_id() == kernel.device.id()) return {};
  return Failure(ErrorCode::device_mismatch,
                 "kernel '{kernel}' of '{a}' cannot be launched on a stream of '{b}'. Load it on "
                 "'{b}', or use a stream of '{a}'.",
                 site)
      .with("a", kernel.device.spec())
      .with("b", spec_of(stream))
      .with("kernel", kernel.name);
}

// --- Arguments against parameters

std::string_view text_of(bool is_memory, ArgumentType type) noexcept {
  if (is_memory) return type.dtype == DType::void_ ? "memory" : name(type.dtype);
  return type.dtype == DType::void_ ? "a value" : name(type.dtype);
}

Failure wrong_type(const KernelState& kernel, std::size_t index, std::string_view expected,
                   std::string_view actual, CallSite site) noexcept {
  return Failure(ErrorCode::type_mismatch,
                 "argument {index} of kernel '{kernel}' is {actual}, and its parameter is "
                 "{expected}. Pass the type that the kernel declares.",
                 site)
      .with("index", index)
      .with("expected", expected)
      .with("actual", actual)
      .with("kernel", kernel.name);
}

bool is_real(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 ||
         dtype == DType::f64 || dtype == DType::f8_e4m3fn || dtype == DType::f8_e5m2;
}

/// Returns whether a value of this type can be passed for that type. The sign of an integer is
/// ignored; an integer for a float is an error.
bool is_value_for(ArgumentType actual, ArgumentType expected) noexcept {
  if (actual.bytes != expected.bytes) return false;
  // A byte that is neither 0 nor 1 is no boolean.
  if (expected.dtype == DType::boolean) return actual.dtype == DType::boolean;
  if (actual.dtype == DType::void_ || expected.dtype == DType::void_) return true;
  return is_real(actual.dtype) == is_real(expected.dtype);
}

bool is_element_of(ArgumentType actual, ArgumentType expected) noexcept {
  if (actual.dtype == DType::byte) return true;  // untyped
  if (actual.dtype != DType::void_ && expected.dtype != DType::void_) {
    return actual.dtype == expected.dtype;
  }
  return actual.bytes == expected.bytes;
}

/// Untyped bytes match any type whose elements fit and are aligned.
Result<void> check_untyped(const KernelState& kernel, std::size_t index,
                           const LaunchArgument& argument, CallSite site) noexcept {
  const ArgumentType element = kernel.declared[index].type;
  if (argument.bytes() % element.bytes != 0) {
    return Failure(ErrorCode::size_mismatch,
                   "argument {index} of kernel '{kernel}' has {actual} bytes, which is not a whole "
                   "number of elements of {expected} bytes. Pass a multiple of the element size.",
                   site)
        .with("index", index)
        .with("expected", element.bytes)
        .with("actual", argument.bytes())
        .with("kernel", kernel.name);
  }
  // Memory that is not allocated yet will be aligned for every type.
  const Storage* const storage = argument.storage();
  const std::uintptr_t first =
      argument.offset_bytes() +
      (storage != nullptr ? reinterpret_cast<std::uintptr_t>(storage->first_byte()) : 0);
  const std::size_t needed = alignment_bytes(element.dtype);
  if (argument.bytes() == 0 || first % needed == 0) return {};
  return Failure(ErrorCode::misaligned,
                 "argument {index} of kernel '{kernel}' is at {address}, and its parameter needs "
                 "an alignment of {required} bytes. Copy the bytes to an aligned address.",
                 site)
      .with("index", index)
      .with("address", first, Unit::hex)
      .with("required", needed)
      .with("kernel", kernel.name);
}

/// An empty buffer or array has no type to check.
bool is_none(const LaunchArgument& argument) noexcept {
  return argument.is_memory() && !argument.storage() && !argument.is_empty_array() &&
         argument.movable() == nullptr;
}

Failure no_memory(const KernelState& kernel, CallSite site) noexcept {
  return Failure(ErrorCode::not_allocated,
                 "an argument of kernel '{kernel}' is an empty buffer or array: it was "
                 "default-constructed or moved from. Create it with a device.",
                 site)
      .with("id", std::uint64_t{0})
      .with("kernel", kernel.name);
}

/// A bare buffer or array needs a kernel that declares what it does to its parameters.
Failure undeclared(const KernelState& kernel, std::size_t index, CallSite site) noexcept {
  return Failure(
             ErrorCode::invalid_argument,
             "argument {index} of kernel '{kernel}' is {value}, and the kernel does not declare "
             "what it does to its parameters. Pass in(x), out(x) or inout(x).",
             site)
      .with("name", "arguments")
      .with("index", index)
      .with("value", "memory without in(), out() or inout()")
      .with("kernel", kernel.name);
}

Result<void> check_declared(const KernelState& kernel, std::size_t index,
                            const LaunchArgument& argument, CallSite site) noexcept {
  const DeclaredParameter& parameter = kernel.declared[index];
  if (parameter.is_memory && is_none(argument)) return no_memory(kernel, site);
  const bool fits = argument.is_memory() == parameter.is_memory &&
                    (parameter.is_memory ? is_element_of(argument.type(), parameter.type)
                                         : is_value_for(argument.type(), parameter.type));
  if (!fits) {
    return wrong_type(kernel, index, text_of(parameter.is_memory, parameter.type),
                      text_of(argument.is_memory(), argument.type()), site);
  }
  if (!parameter.is_memory) return {};
  if (argument.type().dtype == DType::byte && parameter.type.dtype != DType::byte) {
    if (Result<void> fits_there = check_untyped(kernel, index, argument, site); !fits_there) {
      return fits_there;
    }
  }
  if (argument.is_undeclared()) return {};
  const Access access = argument.access();
  const bool is_right = parameter.is_written ? access != Access::read : access != Access::discard;
  if (is_right) return {};
  return Failure(
             ErrorCode::invalid_argument,
             parameter.is_written
                 ? "argument {index} of kernel '{kernel}' is declared in(), but its parameter is "
                   "writable. Declare {value}, or make the parameter a view of const elements."
                 : "argument {index} of kernel '{kernel}' is declared out(), but its parameter is "
                   "read-only. Declare {value}.",
             site)
      .with("name", "arguments")
      .with("index", index)
      .with("value", parameter.is_written ? "out() or inout()" : "in()")
      .with("kernel", kernel.name);
}

Result<void> check_arguments(const KernelState& kernel, std::span<const LaunchArgument> arguments,
                             CallSite site) noexcept {
  if (arguments.size() > Kernel::max_arguments) {
    return Failure(ErrorCode::capacity,
                   "a launch of kernel '{kernel}' has {count} arguments, and the maximum is {max}. "
                   "Pass a struct, or combine buffers.",
                   site)
        .with("max", Kernel::max_arguments)
        .with("count", arguments.size())
        .with("kernel", kernel.name);
  }
  const DeviceInfo& device = kernel.device.info();
  if (device.max_kernel_arguments != 0 && arguments.size() > device.max_kernel_arguments) {
    return Failure(ErrorCode::unsupported,
                   "a kernel with {count} arguments exceeds the {max} arguments that '{device}' "
                   "supports.",
                   site)
        .with("what", "that many kernel arguments")
        .with("count", arguments.size())
        .with("max", device.max_kernel_arguments)
        .with("device", device.spec);
  }
  if (kernel.info.parameter_count && *kernel.info.parameter_count != arguments.size()) {
    return Failure(ErrorCode::shape_mismatch,
                   "kernel '{kernel}' has {expected} parameters and was launched with {actual} "
                   "arguments.",
                   site)
        .with("expected", *kernel.info.parameter_count)
        .with("actual", arguments.size())
        .with("kernel", kernel.name);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const LaunchArgument& argument = arguments[i];
    if (i < kernel.declared.size()) {
      if (Result<void> fits = check_declared(kernel, i, argument, site); !fits) return fits;
      continue;
    }
    if (argument.is_undeclared()) return undeclared(kernel, i, site);
    const KernelInfo::Parameter& parameter = kernel.info.parameters[i];
    if (parameter.kind == KernelInfo::Kind::address && !argument.is_memory()) {
      return wrong_type(kernel, i, "memory", text_of(false, argument.type()), site);
    }
    const std::size_t bytes = argument.is_memory() ? sizeof(void*) : argument.type().bytes;
    if (parameter.value_bytes != 0 && parameter.value_bytes != bytes) {
      return Failure(ErrorCode::size_mismatch,
                     "argument {index} of kernel '{kernel}' has {actual} bytes, and its parameter "
                     "has {expected}. Pass the type that the kernel declares.",
                     site)
          .with("index", i)
          .with("expected", parameter.value_bytes)
          .with("actual", bytes)
          .with("kernel", kernel.name);
    }
  }
  return {};
}

// --- Memory

/// Checks everything about an argument that can be known before work is queued for other arguments.
Result<void> check_memory(const KernelState& kernel, const LaunchArgument& argument, bool is_used,
                          CallSite site) noexcept {
  if (argument.is_empty_array() || argument.movable() != nullptr) return {};
  if (is_none(argument)) return no_memory(kernel, site);
  Storage& storage = *argument.storage();
  const bool is_brought = argument.is_brought();
  // A file has no device; it is checked below.
  const bool is_file = storage.kind() == MemoryKind::file;
  if (!is_brought && !is_file && storage.device().id() != kernel.device.id()) {
    return Failure(ErrorCode::device_mismatch,
                   "buffer {id} on '{a}' cannot be used by kernel '{kernel}' on '{b}'. Copy it to "
                   "'{b}', or launch on '{a}'.",
                   site)
        .with("id", storage.id().value)
        .with("a", storage.device().spec())
        .with("b", kernel.device.spec())
        .with("kernel", kernel.name);
  }
  const bool writes = is_write(argument.access());
  if (writes && storage.is_read_only()) {
    return Failure(ErrorCode::read_only,
                   "{what} is read-only, and kernel '{kernel}' would write it. Copy its bytes to a "
                   "writable buffer first.",
                   site)
        .with("what", storage.origin()->what())
        .with("kernel", kernel.name);
  }
  const Reach reach = storage.reach();
  if (!is_brought && (!reach.kernels_read || (writes && !reach.kernels_write))) {
    return Failure(ErrorCode::unsupported,
                   "work on a device cannot access {what}. Copy its bytes to the device first.",
                   site)
        .with("what", name(storage.kind()));
  }
  if (is_used && argument.access() == Access::read) {
    return storage.check_written(argument.offset_bytes(), argument.bytes(), site);
  }
  return {};
}

Result<void> check_memory(const KernelState& kernel, std::span<const LaunchArgument> arguments,
                          bool is_used, CallSite site) noexcept {
  for (const LaunchArgument& argument : arguments) {
    if (!argument.is_memory()) continue;
    if (Result<void> right = check_memory(kernel, argument, is_used, site); !right) return right;
  }
  return {};
}

Failure moves_in_capture(const KernelState& kernel, CallSite site) noexcept {
  return Failure(
             ErrorCode::stream_misuse,
             "kernel '{kernel}' cannot be captured with a unified buffer: {why}. Capture work on "
             "a Buffer or an Array.",
             site)
      .with("stream", std::uint64_t{0})
      .with("why", "the memory of the buffer may move between launches of the graph")
      .with("kernel", kernel.name);
}

bool is_nothing(const LaunchSize& size) noexcept {
  return std::ranges::count(size.grid, 0u) + std::ranges::count(size.block, 0u) > 0;
}

/// Records a launch, and each memory that it uses. `begun_ns` is before the submission: another
/// thread may wait for the launch, and record that, before this thread does.
void record_launch(const KernelState& kernel, StreamRef stream,
                   std::span<const KernelArgument> arguments, CallSite site,
                   std::uint64_t begun_ns) noexcept {
  trace::EventFacts facts = {.stream = stream.id().value(),
                             .site = site,
                             .device = {kernel.device.id().value, kernel.device.spec()},
                             .kernel = {kernel.number, kernel.name},
                             .time_ns = begun_ns};
  trace::record(trace::EventKind::launch, facts);
  facts.kernel = {};
  for (const KernelArgument& argument : arguments) {
    if (argument.range_address == nullptr) continue;
    facts.address = reinterpret_cast<std::uintptr_t>(argument.range_address);
    facts.bytes = argument.range_bytes;
    facts.detail = static_cast<std::uint8_t>(argument.access);
    trace::record(trace::EventKind::use, facts);
  }
}

/// Submits a launch whose arguments have the right types and accesses. Sets `has_submitted` if work
/// was submitted, also if a later launch of a reduction failed.
Result<Mark> submit(const std::shared_ptr<KernelState>& state, StreamRef stream,
                    const LaunchSize& size, std::span<const LaunchArgument> arguments,
                    bool& has_submitted, CallSite site) noexcept {
  KernelState& kernel = *state;
  if (is_nothing(size)) {
    if (Result<void> right = check_memory(kernel, arguments, false, site); !right) {
      return right.failure();
    }
    return stream.next_mark();
  }
  const Result<std::shared_ptr<CapturedUses>> captured = CapturedUses::try_find(stream, site);
  if (!captured) return captured.failure();
  if (*captured) [[unlikely]] {
    if (Result<void> kept = (*captured)->try_keep(state, site); !kept) return kept.failure();
  }
  if (MovedArguments::are_among(arguments)) [[unlikely]] {
    if (*captured) return moves_in_capture(kernel, site);
    // Check all arguments before any memory moves.
    if (Result<void> right = check_memory(kernel, arguments, true, site); !right) {
      return right.failure();
    }
    MovedArguments moved;
    if (Result<void> there = moved.try_acquire(arguments, stream, site); !there) {
      return there.failure();
    }
    Result<Mark> launched = submit(state, stream, size, moved.plain(), has_submitted, site);
    moved.finish(has_submitted);
    return launched;
  }
  ReductionPasses passes(kernel, stream);
  const bool is_reduction = kernel.combine.value != 0;
  if (is_reduction) [[unlikely]] {
    if (Result<void> allocated = passes.try_allocate(size, site); !allocated) {
      return allocated.failure();
    }
  }
  UseScope uses(stream);
  for (const LaunchArgument& argument : arguments) {
    if (!argument.is_memory()) continue;
    // An argument of zero bytes is not a use, but it can be invalid, like one that was moved from.
    if (argument.bytes() == 0 || argument.storage() == nullptr) {
      if (Result<void> right = check_memory(kernel, argument, true, site); !right) {
        return right.failure();
      }
    }
    Storage* const storage = argument.storage();
    const std::size_t offset = argument.offset_bytes(), bytes = argument.bytes();
    const Access access = argument.access();
    const Result<std::size_t> added =
        argument.is_brought() ? uses.try_add_brought(storage, offset, bytes, access, site)
                              : uses.try_add_borrowed(storage, offset, bytes, access, site);
    if (!added) return added.failure();
  }
  if (Result<void> begun = uses.try_begin(site); !begun) {
    // Use an error message that names the kernel if there is one.
    const Result<void> right = check_memory(kernel, arguments, true, site);
    return right ? begun.failure() : right.failure();
  }
  // Both never grow: the number of arguments is bounded, also of portable kernels.
  InlineVector<void*, Kernel::max_arguments> addresses;
  InlineVector<KernelArgument, Kernel::max_arguments> packed;
  std::size_t used = 0;
  for (const LaunchArgument& argument : arguments) {
    if (!argument.is_memory()) {
      packed.emplace_back(KernelArgument{argument.value(), argument.type().bytes});
      continue;
    }
    void* const address = uses.pointer(used++);
    packed.emplace_back(KernelArgument{&addresses.emplace_back(address), sizeof(void*), address,
                                       argument.bytes(), argument.access()});
  }
  if (Result<void> noted = kernel.try_note_launch(stream, site); !noted) {
    uses.cancel();
    return noted.failure();
  }
  const std::uint64_t begun_ns = trace::is_recording() ? trace::now_ns() : 0;
  const Result<void> launched = is_reduction
                                    ? passes.try_launch(size, {packed.data(), packed.size()}, site)
                                    : stream.try_launch(kernel.native, size, packed, site);
  has_submitted = is_reduction ? passes.has_submitted() : bool(launched);
  if (!launched) {
    // The launches of a reduction that were submitted still use the memory.
    if (has_submitted) {
      uses.end();
    } else {
      uses.cancel();
    }
    return launched.failure();
  }
  const Mark mark = stream.next_mark();
  uses.end();
  if (begun_ns != 0) {
    record_launch(kernel, stream, {packed.data(), packed.size()}, site, begun_ns);
  }
  return mark;
}

// Not inline: their lists of arguments would enlarge the stack frame of every launch.

[[gnu::noinline]] Result<Mark> launch_portable(const std::shared_ptr<KernelState>& state,
                                               StreamRef stream, const LaunchExtent& extent,
                                               std::span<const LaunchArgument> arguments,
                                               CallSite site) noexcept {
  PortableArguments portable(*state);
  const Result<LaunchSize> size = portable.try_prepare(extent, arguments, site);
  if (!size) return size.failure();
  bool has_submitted = false;
  return submit(state, stream, *size, portable.arguments(), has_submitted, site);
}

/// Launches a kernel that declares the access of arguments which have none.
[[gnu::noinline]] Result<Mark> launch_declared(const std::shared_ptr<KernelState>& state,
                                               StreamRef stream, const LaunchSize& size,
                                               std::span<const LaunchArgument> arguments,
                                               CallSite site) noexcept {
  const DeclaredAccesses declared(*state, arguments);
  bool has_submitted = false;
  return submit(state, stream, size, declared.arguments(), has_submitted, site);
}

}  // namespace

Result<void> try_note_launch(KernelState& kernel, StreamRef stream, CallSite site) noexcept {
  return kernel.try_note_launch(stream, site);
}

std::size_t poll_kernels() noexcept {
  std::size_t left = 0;
  KernelState* state = waiting.exchange(nullptr, std::memory_order_acquire);
  while (state != nullptr) {
    KernelState* const next = state->next;
    if (state->are_launches_done()) {
      const std::unique_ptr<KernelState> gone(state);
      // A device that has closed has unloaded the kernel.
      if (const std::shared_ptr<DeviceState> device = state->device_state.lock()) {
        device->inner_handle().unload_kernel(state->native);
        if (state->combine.value != 0) device->inner_handle().unload_kernel(state->combine);
      }
    } else {
      wait_for(state);
      ++left;
    }
    state = next;
  }
  return left;
}

Result<Kernel> Kernel::try_load(const Device& device, const KernelSource& source,
                                CallSite site) noexcept {
  return try_declare(device, source, std::nullopt, site);
}

Result<Kernel> Kernel::try_declare(const Device& device, const KernelSource& source,
                                   std::optional<std::span<const DeclaredParameter>> typed,
                                   CallSite site) noexcept {
  const bool is_typed = typed.has_value();
  const std::span<const DeclaredParameter> declared =
      typed.value_or(std::span<const DeclaredParameter>());
  static_cast<void>(poll_kernels());
  try {
    const std::shared_ptr<KernelState> state(new KernelState, [](KernelState* gone) {
      end(gone);
      static_cast<void>(poll_kernels());
    });
    state->name = source.entry;
    state->declared.assign(declared.begin(), declared.end());
    state->program = source.program;
    const Result<NativeKernel> native = device.try_load_kernel(source);
    if (!native) return Failure(native.failure()).at(site);
    state->device = device;
    state->device_state = DeviceState::of(device)->weak_from_this();
    state->native = *native;
    const Result<KernelInfo> info = device.try_kernel_info(*native);
    if (!info) return Failure(info.failure()).at(site);
    state->info = *info;
    if (is_typed) {
      // Facts that the device does not report come from the compiler.
      state->info.parameter_count = static_cast<std::uint32_t>(declared.size());
      for (std::size_t i = 0; i < declared.size(); ++i) {
        state->info.parameters[i] =
            declared[i].is_memory
                ? KernelInfo::Parameter{sizeof(void*), KernelInfo::Kind::address}
                : KernelInfo::Parameter{declared[i].type.bytes, KernelInfo::Kind::value};
      }
    }
    return Kernel(state);
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(KernelState) + source.entry.size(), "a kernel", site);
  }
}

Result<Kernel> Kernel::try_from_text(const Device& device, const KernelText& text,
                                     CallSite site) noexcept {
  try {
    Result<language::Program> parsed = language::try_parse(with_lines_of_file(text), text.entry);
    if (!parsed) return Failure(parsed.failure()).at(site);
    const auto program = std::make_shared<const language::Program>(*std::move(parsed));
    const std::vector<DeclaredParameter> declared = declared_parameters(*program);
    KernelSource source = {.entry = program->name,
                           .body = text.body,
                           .program = program,
                           .splits = text.body != nullptr};
    Result<Kernel> kernel = try_declare(device, source, std::span(declared), site);
    if (!kernel || program->form != language::Form::reduction) return kernel;
    source.body = text.combine;
    source.is_combine = true;
    const Result<NativeKernel> combine = device.try_load_kernel(source);
    if (!combine) return Failure(combine.failure()).at(site);
    kernel->state_->combine = *combine;
    return kernel;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(KernelState) + text.text.size(), "a kernel", site);
  }
}

std::string_view Kernel::name() const noexcept {
  return state_ ? state_->name : std::string_view();
}

const Device& Kernel::device() const noexcept {
  static const Device none;
  return state_ ? state_->device : none;
}

const KernelInfo& Kernel::info() const noexcept {
  static constexpr KernelInfo nothing;
  return state_ ? state_->info : nothing;
}

bool Kernel::declares_parameters() const noexcept { return state_ && !state_->declared.empty(); }

std::optional<DType> Kernel::value_type(std::size_t index) const noexcept {
  if (!state_ || index >= state_->declared.size()) return std::nullopt;
  const DeclaredParameter& parameter = state_->declared[index];
  if (parameter.is_memory || parameter.type.dtype == DType::void_) return std::nullopt;
  return parameter.type.dtype;
}

NativeKernel Kernel::native() const noexcept { return state_ ? state_->native : NativeKernel{}; }

Result<Mark> Kernel::try_launch_with(LaunchStream on, const LaunchExtent& extent,
                                     std::span<const LaunchArgument> arguments) const noexcept {
  const auto& [stream, site] = on;
  if (!state_) return no_kernel(site);
  KernelState& kernel = *state_;
  if (Result<void> right = check_stream(kernel, stream, site); !right) return right.failure();
  if (Result<void> right = check_arguments(kernel, arguments, site); !right) {
    return right.failure();
  }
  if (kernel.program) [[unlikely]]
    return launch_portable(state_, stream, extent, arguments, site);
  const std::uint32_t suitable = kernel.info.block_threads;
  const Result<LaunchSize> size =
      extent.try_size(suitable != 0 ? suitable : LaunchSize::usual_block, site);
  if (!size) return size.failure();
  if (std::ranges::any_of(arguments, &LaunchArgument::is_undeclared)) [[unlikely]] {
    return launch_declared(state_, stream, *size, arguments, site);
  }
  bool has_submitted = false;
  return submit(state_, stream, *size, arguments, has_submitted, site);
}

}  // namespace tern
