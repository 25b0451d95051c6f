// The cost of exporting a table as an Arrow device array, and of importing one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/interop/arrow.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t columns = 100;
constexpr double goal_us = 20;

/// Wraps an exported structure, so that the import treats it as foreign. The wrapper lives until
/// Tern releases it, which may be later than the import. Its schema is kept.
struct Wrapped {
  ArrowDeviceArray outer = {};
  ArrowArray inner = {};

  explicit Wrapped(const ArrowDeviceArray& given) : outer(given), inner(given.array) {
    outer.array.private_data = this;
    outer.array.release = [](ArrowArray* self) {
      const std::unique_ptr<Wrapped> wrapped(static_cast<Wrapped*>(self->private_data));
      wrapped->inner.release(&wrapped->inner);
      self->release = nullptr;
    };
  }
};

void run(Context& context) {
  const Stage stage(context);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(100, 3);
  const StreamRef stream = stage.streams[0];
  std::vector<Field> fields;
  std::vector<Column> made;
  for (std::size_t i = 0; i < columns; ++i) {
    fields.push_back({"column " + std::to_string(i), TypeKind::f64, false});
    made.push_back(Column::allocate(stage.device, TypeKind::f64, 1000,
                                    {.storage = {.contents = Contents::zero, .stream = stream}}));
    made.back().parts().values.ensure_allocated(stream);
  }
  stage.device.synchronize();
  const Table table = Table::make(Schema(fields), made);
  ArrowDeviceArray array;
  if (const Result<void> given = try_export_arrow(table, &array, {.stream = stream}); !given) {
    context.note("Arrow has no device type for memory of this device.");
    return;
  }
  array.array.release(&array.array);
  const auto add = [&](const char* name, const Body& body) {
    context.step(name);
    context.add({.name = name,
                 .value = median_ns(
                              [&] {
                                for (std::size_t i = 0; i < rounds; ++i) body();
                              },
                              rounds, context.seconds_per_figure()) /
                          1000,
                 .unit = "us",
                 .better = Better::lower,
                 .goal = goal_us});
  };
  const ArrowOptions to = {.stream = stream};
  add("100 columns exported, and let go", [&] {
    try_export_arrow(table, &array, to).value();
    array.array.release(&array.array);
  });
  ArrowSchema kept;
  try_export_arrow_schema(table.schema(), &kept).value();
  // A schema is exchanged once, and is then used for all tables.
  const auto borrowed = [&] {
    ArrowSchema schema = kept;
    schema.release = [](ArrowSchema* self) { self->release = nullptr; };
    return schema;
  };
  add("100 columns exported and imported, our own", [&] {
    ArrowSchema schema;
    try_export_arrow_schema(table.schema(), &schema).value();
    try_export_arrow(table, &array, to).value();
    static_cast<void>(import_arrow(stage.device, &array, &schema, {.stream = stream}));
  });
  add("100 columns exported and imported, a stranger's", [&] {
    try_export_arrow(table, &array, to).value();
    auto* const wrapped = new Wrapped(array);
    ArrowSchema schema = borrowed();
    static_cast<void>(import_arrow(stage.device, &wrapped->outer, &schema, {.stream = stream}));
  });
  // The import alone: another library pays for its own export.
  std::vector<Wrapped*> given;
  const std::size_t tables = context.usual_or_quick<std::size_t>(16, 2);
  const char* const name = "100 columns imported, a stranger's";
  context.step(name);
  context.add({.name = name,
               .value = median_ns_after(
                            [&] {
                              for (std::size_t i = 0; i < tables; ++i) {
                                try_export_arrow(table, &array, to).value();
                                given.push_back(new Wrapped(array));
                              }
                            },
                            [&] {
                              for (Wrapped* const one : given) {
                                ArrowSchema schema = borrowed();
                                static_cast<void>(import_arrow(stage.device, &one->outer, &schema,
                                                               {.stream = stream}));
                              }
                              given.clear();
                            },
                            tables, context.seconds_per_figure()) /
                        1000,
               .unit = "us",
               .better = Better::lower,
               .goal = goal_us});
  kept.release(&kept);
}

const Registration registered({"interop.arrow", "a table to another library and back", run});

}  // namespace
}  // namespace tern::bench
