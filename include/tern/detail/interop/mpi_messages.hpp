// Not part of the interface.
//
// Messages between two ranks, and halos, which are messages between neighbours. A message is a
// header with the description of the memory, an answer, and the bytes in pieces. A table is a
// description with columns, and the bytes of its buffers one after the other.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/core/access.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/error.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/interop/mpi_memory.hpp"
#include "tern/detail/interop/mpi_ranks.hpp"
#include "tern/detail/interop/mpi_steps.hpp"
#include "tern/detail/interop/mpi_wire.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/schema.hpp"
#include "tern/table/table.hpp"

namespace tern::mpi::detail {

// --- Tables

[[nodiscard]] inline Json json_of(const Metadata& metadata) {
  Json::Object made;
  for (const auto& [key, value] : metadata.pairs()) made.insert_or_assign(key, value);
  return made;
}

[[nodiscard]] inline Metadata metadata_of(const Json& json) {
  std::vector<Metadata::Pair> pairs;
  if (const auto* object = json.as<Json::Object>()) {
    for (const auto& [key, value] : *object) {
      if (const auto* text = value.as<std::string>()) pairs.emplace_back(key, *text);
    }
  }
  return Metadata(std::move(pairs));
}

/// Returns a type of a description: the kind, the unit, the zone.
[[nodiscard]] inline LogicalType type_of(const Json::List& named, int rank) {
  std::array<std::string, 3> texts;
  for (std::size_t i = 0; i < 3 && i < named.size(); ++i) {
    if (const auto* text = named[i].as<std::string>()) texts[i] = *text;
  }
  TimeUnit unit = TimeUnit::second;
  for (const TimeUnit one : {TimeUnit::millisecond, TimeUnit::microsecond, TimeUnit::nanosecond}) {
    if (name(one) == texts[1]) unit = one;
  }
  if (texts[0] == "timestamp") return LogicalType::timestamp(unit, texts[2]);
  if (texts[0] == "time") return LogicalType::time(unit);
  if (texts[0] == "duration") return LogicalType::duration(unit);
#define TERN_TYPE_KIND(enumerator, kind_name) \
  if (texts[0] == kind_name) return TypeKind::enumerator;
  TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
  refuse_header("names the column type '" + texts[0] + "', which is unknown",
                static_cast<std::uint64_t>(rank));
}

inline constexpr std::array<const char*, 3> column_parts = {"values", "validity", "offsets"};

/// A table, and those of its buffers that have bytes, in the order of its description.
struct TableParts {
  Table table;
  Json fields;
  std::vector<Buffer> buffers;
};

/// Describes a table. The buffers are a copy: they have no rows outside of the table, and later
/// work may write the table.
[[nodiscard]] inline TableParts split(const Table& table) {
  const std::uint64_t rows = table.rows_host();
  const Table filled = table.slice(0, rows);
  TableParts made{Table::concat({&filled, 1}), {}, {}};
  Json::List columns;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < made.table.arity(); ++i) {
    const Field& field = *made.table.schema().field(i);
    const Column& column = made.table.columns()[i];
    Json::Object described = {
        {"name", field.name},
        {"type", Json::List{name(field.type.kind()), name(field.type.unit()), field.type.zone()}},
        {"nullable", field.is_nullable},
        {"metadata", json_of(field.metadata)},
        {"null_count", Json()}};
    if (const auto count = column.null_count()) {
      described["null_count"] = static_cast<std::uint64_t>(*count);
    }
    const std::array<Buffer, 3> parts = {column.values(), column.validity(), column.offsets()};
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Buffer& buffer = parts[part];
      described[column_parts[part]] =
          buffer ? Json(Json::List{dtype_text(buffer.dtype()), std::uint64_t{buffer.size()}})
                 : Json();
      bytes += buffer.size_bytes();
      if (buffer.size_bytes() > 0) made.buffers.push_back(buffer);
    }
    columns.emplace_back(std::move(described));
  }
  made.fields = Json::Object{{"bytes", bytes},
                             {"columns", std::move(columns)},
                             {"metadata", json_of(made.table.schema().metadata())},
                             {"rows", rows}};
  return made;
}

/// Allocates the table of a description on a device.
[[nodiscard]] inline TableParts make_table(const Json& fields, const Device& device, int rank) {
  const auto rows = static_cast<std::uint64_t>(member<std::int64_t>(fields, "rows", rank));
  TableParts made;
  std::vector<Field> schema;
  std::vector<Column> columns;
  StorageOptions options{.contents = Contents::unspecified};
  options.tag = Tag("mpi table");
  for (const Json& described : member<Json::List>(fields, "columns", rank)) {
    std::array<Buffer, 3> parts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Json* const found = described.find(column_parts[part]);
      const auto* sized = found == nullptr ? nullptr : found->as<Json::List>();
      if (sized == nullptr) continue;
      const auto* dtype = sized->size() == 2 ? (*sized)[0].as<std::string>() : nullptr;
      const auto* size = sized->size() == 2 ? (*sized)[1].as<std::int64_t>() : nullptr;
      if (dtype == nullptr || size == nullptr || *size < 0) {
        refuse_header("describes a buffer of a table without a size",
                      static_cast<std::uint64_t>(rank));
      }
      const DType element = try_parse_dtype(*dtype).value();
      parts[part] = Buffer(device, Shape::flat(static_cast<std::size_t>(*size)), element, options);
      if (*size == 0) continue;
      parts[part].ensure_allocated();
      made.buffers.push_back(parts[part]);
    }
    const LogicalType type = type_of(member<Json::List>(described, "type", rank), rank);
    std::optional<std::size_t> null_count;
    if (const Json* found = described.find("null_count")) {
      const auto* count = found->as<std::int64_t>();
      if (count != nullptr) null_count = static_cast<std::size_t>(*count);
    }
    columns.push_back(Column::over(type, rows, {parts[0], parts[1], parts[2], 0, null_count}));
    const Json* const metadata = described.find("metadata");
    schema.push_back({member<std::string>(described, "name", rank), type,
                      member<bool>(described, "nullable", rank),
                      metadata == nullptr ? Metadata() : metadata_of(*metadata)});
  }
  const Json* const metadata = fields.find("metadata");
  made.table = Table::make(
      Schema(std::move(schema), metadata == nullptr ? Metadata() : metadata_of(*metadata)),
      std::move(columns), {.rows = rows});
  made.fields = fields;
  return made;
}

/// Opens the buffers of a table, all or none.
[[nodiscard]] inline Opened open_parts(const TableParts& parts, Access access) {
  Opened made;
  made.fields = parts.fields;
  try {
    for (const Buffer& buffer : parts.buffers) {
      made.views.push_back(Memory(buffer).open(access, {}, mpi_accepts(buffer.device())));
    }
  } catch (...) {
    made.end(false);
    throw;
  }
  return made;
}

[[nodiscard]] inline std::vector<std::size_t> sizes_of(const Json& fields, int rank) {
  std::vector<std::size_t> made;
  if (fields.find("columns") == nullptr) {
    made.push_back(static_cast<std::size_t>(member<std::int64_t>(fields, "bytes", rank)));
    return made;
  }
  for (const Json& described : member<Json::List>(fields, "columns", rank)) {
    for (const char* const part : column_parts) {
      const Json* const found = described.find(part);
      const auto* sized = found == nullptr ? nullptr : found->as<Json::List>();
      if (sized == nullptr) continue;
      const auto count = static_cast<std::size_t>(*sized->at(1).as<std::int64_t>());
      const DType dtype = try_parse_dtype(*sized->at(0).as<std::string>()).value();
      if (count > 0) made.push_back(count * size_bytes(dtype));
    }
  }
  return made;
}

// --- Messages

/// One piece of whole elements.
struct Part {
  std::size_t slot = 0, first = 0, count = 0;
};
[[nodiscard]] inline std::vector<Part> parts_of(std::size_t bytes, std::size_t width) {
  std::vector<Part> made;
  const std::size_t longest = piece_bytes / width * width;
  for (std::size_t first = 0; first < bytes; first += longest) {
    made.push_back({made.size() % 2, first, std::min(longest, bytes - first)});
  }
  return made;
}

class Messages {
 public:
  explicit Messages(Ranks& ranks) noexcept : ranks_(ranks) {}

  /// Sends what was opened to read, or its error.
  Steps<> send(MPI_Comm comm, Opened opened, int dest, int tag) {
    try {
      if (opened.error) {
        co_await ranks_.send_text(comm, error_fields(opened.error), dest, tag);
        std::rethrow_exception(opened.error);
      }
      const int ticket = ++tickets_ % (ranks_.last_tag / 2);
      Json::Object fields = *opened.fields.as<Json::Object>();
      fields["ticket"] = ticket;
      co_await ranks_.send_text(comm, std::move(fields), dest, tag);
      const Ranks::Header answer = co_await ranks_.receive_text(ranks_.bodies, dest, 2 * ticket);
      if (const Json* error = answer.fields.find("error")) {
        const Json* const numbers = error->find("numbers");
        const bool is_of_both = numbers != nullptr && numbers->find("dest") != nullptr;
        raise(failure_of(*error, is_of_both ? "{text}" : "rank {rank} could not receive: {text}",
                         dest));
      }
      const std::vector<std::size_t> sizes = sizes_of(opened.fields, ranks_.rank);
      for (std::size_t i = 0; i < opened.views.size(); ++i) {
        co_await send_bytes(opened.views[i], sizes[i], dest, 2 * ticket + 1);
      }
    } catch (...) {
      opened.end(false);
      throw;
    }
    opened.end(true);
  }

  /// Receives into memory that was opened to write.
  Steps<> receive(MPI_Comm comm, Opened opened, int source, int tag) {
    const Room room = [this, &opened](const Json& there, int rank) {
      if (opened.error) std::rethrow_exception(opened.error);
      const Mismatch found = compare(opened.fields, there);
      if (found.is_equal) return opened;
      const auto bytes = [&](const Json& fields) {
        return static_cast<std::uint64_t>(member<std::int64_t>(fields, "bytes", rank));
      };
      raise(Failure(found.code,
                    "rank {source} sends {sent}, and rank {dest} receives into {expected}. Use the "
                    "same dtype and shape on both ranks.")
                .with("source", static_cast<std::uint64_t>(rank))
                .with("dest", static_cast<std::uint64_t>(ranks_.rank))
                .with_bytes("sent_bytes", bytes(there))
                .with_bytes("expected_bytes", bytes(opened.fields))
                .with("sent", text_of(there, rank))
                .with("expected", text_of(opened.fields, rank)));
    };
    try {
      co_await receive_all(comm, &room, source, tag);
    } catch (...) {
      opened.end(false);
      throw;
    }
  }

  Steps<> send_table(Table table, int dest, int tag) {
    Opened opened;
    try {
      opened = open_parts(split(table), Access::read);
    } catch (...) {
      opened.error = std::current_exception();
    }
    co_await send(ranks_.headers, std::move(opened), dest, tag);
  }

  /// Receives a table into new memory of a device.
  Steps<> receive_table(std::shared_ptr<Table> to, Device device, int source, int tag) {
    const Room room = [this, &to, &device](const Json& there, int rank) {
      if (there.find("columns") == nullptr) {
        raise(Failure(ErrorCode::type_mismatch,
                      "rank {source} sends {sent}, and rank {dest} receives a table. Receive it "
                      "with recv().")
                  .with("source", static_cast<std::uint64_t>(rank))
                  .with("dest", static_cast<std::uint64_t>(ranks_.rank))
                  .with("sent", text_of(there, rank)));
      }
      const TableParts made = make_table(there, device, rank);
      *to = made.table;
      return open_parts(made, Access::discard);
    };
    co_await receive_all(ranks_.headers, &room, source, tag);
  }

  /// Exchanges rows with the neighbours `before` and `after`; -1 stands for no neighbour.
  Steps<> exchange(Memory grid, std::size_t width, int before, int after, StreamRef stream) {
    const std::size_t rows = grid.shape().rank() > 0 ? grid.shape().extent(0) : 0;
    std::exception_ptr error;
    if (width < 1 || rows / 3 < width) {
      error = std::make_exception_ptr(InvalidArgument(
          Failure(ErrorCode::invalid_argument,
                  "a halo of {width} rows needs at least {needed} rows of memory, and the memory "
                  "has {rows}. Use more rows on each rank, or fewer ranks.")
              .with("width", width)
              .with("needed", 3 * std::max<std::size_t>(width, 1))
              .with("rows", rows)));
    }
    const auto open = [&](std::size_t first, Access access) {
      Opened made;
      made.error = error;
      if (error) return made;
      return ranks_.open(grid.rows(first, width), access, stream);
    };
    std::vector<std::unique_ptr<Transfer>> all;
    const auto add = [&](Steps<> steps) {
      all.push_back(std::make_unique<Transfer>(std::move(steps), "a part of a halo exchange"));
    };
    if (before >= 0) {
      add(send(ranks_.own_headers, open(width, Access::read), before, to_before_tag));
      add(receive(ranks_.own_headers, open(0, Access::discard), before, to_after_tag));
    }
    if (after >= 0) {
      add(send(ranks_.own_headers, open(rows - 2 * width, Access::read), after, to_after_tag));
      add(receive(ranks_.own_headers, open(rows - width, Access::discard), after, to_before_tag));
    }
    co_await together(std::move(all));
    if (error) std::rethrow_exception(error);
  }

 private:
  /// Opens memory for a description, or throws why not.
  using Room = std::function<Opened(const Json&, int)>;

  Steps<> receive_all(MPI_Comm comm, const Room* room, int source, int tag) {
    const Ranks::Header header = co_await ranks_.receive_text(comm, source, tag);
    const Json& there = header.fields;
    const int rank = header.source;
    if (const Json* error = there.find("error")) {
      raise(failure_of(*error, "rank {rank} could not send: {text}", rank));
    }
    const int ticket = static_cast<int>(member<std::int64_t>(there, "ticket", rank));
    Opened opened;
    try {
      opened = (*room)(there, rank);
    } catch (...) {
      opened.error = std::current_exception();
    }
    if (opened.error) {
      co_await ranks_.send_text(ranks_.bodies, error_fields(opened.error), rank, 2 * ticket);
      std::rethrow_exception(opened.error);
    }
    try {
      co_await ranks_.send_text(ranks_.bodies, Json::Object(), rank, 2 * ticket);
      const std::vector<std::size_t> sizes = sizes_of(there, rank);
      for (std::size_t i = 0; i < opened.views.size(); ++i) {
        co_await receive_bytes(opened.views[i], sizes[i], rank, 2 * ticket + 1);
      }
    } catch (...) {
      opened.end(false);
      throw;
    }
    opened.end(true);
  }

  Steps<> send_bytes(std::shared_ptr<Bytes> view, std::size_t size, int dest, int tag) {
    std::array<std::shared_ptr<Operation>, 2> sent;
    std::exception_ptr error;
    try {
      for (const Part& part : parts_of(size, 1)) {
        if (sent[part.slot]) {
          until previous = ranks_.complete(sent[part.slot], dest);
          co_await previous;
        }
        const Piece piece = view->fetch(part.slot, part.first, part.count);
        until ready([&piece] { return piece.is_ready(); });
        co_await ready;
        sent[part.slot] = ranks_.send(ranks_.bodies, piece.address, part.count, dest, tag, view);
      }
      for (const auto& last : sent) {
        if (!last) continue;
        until complete = ranks_.complete(last, dest);
        co_await complete;
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (!error) co_return;
    // The receiver expects bytes. No bytes tell it to stop.
    kept().push_back(ranks_.send(ranks_.bodies, nullptr, 0, dest, tag, nullptr));
    for (const auto& last : sent) {
      if (last) kept().push_back(last);
    }
    std::rethrow_exception(error);
  }

  Steps<> receive_bytes(std::shared_ptr<Bytes> view, std::size_t size, int source, int tag) {
    struct Expected {
      std::shared_ptr<Operation> operation = {};
      std::size_t first = 0, count = 0;
    };
    std::array<Expected, 2> expected;
    std::exception_ptr error;
    std::vector<Part> parts = parts_of(size, 1);
    // Two more rounds finish the last pieces.
    for (int more = 0; more < 2; ++more) parts.push_back({parts.size() % 2, 0, 0});
    for (const Part& part : parts) {
      const Expected now = std::exchange(expected[part.slot], {});
      if (now.operation) {
        until complete = ranks_.complete(now.operation, source);
        co_await complete;
        if (now.operation->bytes != now.count) {
          for (const Expected& other : expected) {
            if (other.operation) other.operation->cancel();
          }
          raise(Failure(ErrorCode::sync_failed,
                        "rank {source} stopped a send to rank {dest} after {received_bytes} of "
                        "{expected_bytes}, because of an error on rank {source}. The memory of "
                        "rank {dest} is incomplete: repeat the transfer.")
                    .with("source", static_cast<std::uint64_t>(source))
                    .with("dest", static_cast<std::uint64_t>(ranks_.rank))
                    .with_bytes("received_bytes", now.first)
                    .with_bytes("expected_bytes", size));
        }
        try {
          view->store(part.slot, now.first, now.count);
        } catch (...) {
          // The sender goes on, so the other pieces must be received.
          if (!error) error = std::current_exception();
          view = std::make_shared<NoBytes>(size);
        }
      }
      if (part.count == 0) continue;
      const Piece piece = view->room(part.slot, part.first, part.count);
      until ready([&piece] { return piece.is_ready(); });
      co_await ready;
      expected[part.slot] = {ranks_.receive(piece.address, part.count, source, tag, view),
                             part.first, part.count};
    }
    if (error) std::rethrow_exception(error);
  }

  Ranks& ranks_;
  int tickets_ = 0;
};

}  // namespace tern::mpi::detail
