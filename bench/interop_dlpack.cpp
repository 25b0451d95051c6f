// The cost of exporting a tensor and of importing one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ns = 300;

/// Wraps an exported tensor, so that the import treats it as foreign. The wrapper lives until Tern
/// calls its deleter, which may be later than the import.
struct Wrapped {
  abi::DLManagedTensorVersioned managed;
  abi::DLManagedTensorVersioned* inner;

  explicit Wrapped(abi::DLManagedTensorVersioned* tensor) : managed(*tensor), inner(tensor) {
    managed.manager_ctx = this;
    managed.deleter = [](abi::DLManagedTensorVersioned* self) {
      const std::unique_ptr<Wrapped> wrapped(static_cast<Wrapped*>(self->manager_ctx));
      wrapped->inner->deleter(wrapped->inner);
    };
  }
};

void run(Context& context) {
  const Stage stage(context);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(2'000, 10);
  const StreamRef stream = stage.streams[0];
  const Buffer buffer = Buffer::allocate(stage.device, Shape{64, 32}, DType::f32,
                                         {.contents = Contents::zero, .stream = stream});
  stage.device.synchronize();
  if (!try_dlpack_device(*buffer.storage())) {
    context.note("DLPack has no device type for memory of this device.");
    return;
  }
  const auto add = [&](const char* name, const Body& body) {
    context.step(name);
    context.add({.name = name,
                 .value = median_ns(
                     [&] {
                       for (std::size_t i = 0; i < rounds; ++i) body();
                     },
                     rounds, context.seconds_per_figure()),
                 .unit = "ns",
                 .better = Better::lower,
                 .goal = goal_ns});
  };
  const DlpackOptions to = {.stream = stream};
  add("exported, and let go", [&] {
    abi::DLManagedTensorVersioned* const given = try_export_dlpack(buffer, to).value();
    given->deleter(given);
  });
  add("exported and imported, our own", [&] {
    static_cast<void>(
        try_import_dlpack(stage.device, try_export_dlpack(buffer, to).value()).value());
  });
  add("exported and imported, as a stranger's", [&] {
    auto* const wrapped = new Wrapped(try_export_dlpack(buffer, to).value());
    static_cast<void>(
        try_import_dlpack(stage.device, &wrapped->managed, {.stream = stream}).value());
  });
  // The import alone: another library pays for its own export.
  std::vector<Wrapped*> given;
  const std::size_t tensors = context.usual_or_quick<std::size_t>(256, 10);
  context.step("imported, as a stranger's");
  context.add(
      {.name = "imported, as a stranger's",
       .value = median_ns_after(
           [&] {
             for (std::size_t i = 0; i < tensors; ++i) {
               given.push_back(new Wrapped(try_export_dlpack(buffer, to).value()));
             }
           },
           [&] {
             for (Wrapped* const one : given) {
               static_cast<void>(
                   try_import_dlpack(stage.device, &one->managed, {.stream = stream}).value());
             }
             given.clear();
           },
           tensors, context.seconds_per_figure()),
       .unit = "ns",
       .better = Better::lower,
       .goal = goal_ns});
}

const Registration registered({"interop.dlpack", "a tensor to another library and back", run});

}  // namespace
}  // namespace tern::bench
