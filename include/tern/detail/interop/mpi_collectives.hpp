// Not part of the interface.
//
// Collectives: all ranks call them in the same order. A collective starts with an agreement: the
// ranks exchange three numbers and, if they disagree, their descriptions.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/error.hpp"
#include "tern/detail/interop/mpi_memory.hpp"
#include "tern/detail/interop/mpi_messages.hpp"
#include "tern/detail/interop/mpi_ranks.hpp"
#include "tern/detail/interop/mpi_steps.hpp"
#include "tern/detail/interop/mpi_wire.hpp"
#include "tern/device/device.hpp"
#include "tern/table/table.hpp"

namespace tern::mpi::detail {

/// A name of an all-reduce in headers, and what MPI calls it.
struct Combination {
  const char* name = "";
  MPI_Op op = MPI_OP_NULL;
  bool is_for_floats = true, is_for_complex = true;
};

/// Returns MPI's type of the elements, or MPI_DATATYPE_NULL if MPI cannot combine them.
[[nodiscard]] inline MPI_Datatype type_to_combine(std::string_view dtype) {
  const std::pair<std::string_view, MPI_Datatype> types[] = {{"int8", MPI_INT8_T},
                                                             {"int16", MPI_INT16_T},
                                                             {"int32", MPI_INT32_T},
                                                             {"int64", MPI_INT64_T},
                                                             {"uint8", MPI_UINT8_T},
                                                             {"uint16", MPI_UINT16_T},
                                                             {"uint32", MPI_UINT32_T},
                                                             {"uint64", MPI_UINT64_T},
                                                             {"float32", MPI_FLOAT},
                                                             {"float64", MPI_DOUBLE},
                                                             {"complex64", MPI_C_FLOAT_COMPLEX},
                                                             {"complex128", MPI_C_DOUBLE_COMPLEX}};
  for (const auto& [name, type] : types) {
    if (name == dtype) return type;
  }
  return MPI_DATATYPE_NULL;
}

class Collectives {
 public:
  explicit Collectives(Ranks& ranks) noexcept : ranks_(ranks) {}

  /// Counts a collective, so that other ranks know whether a rank that leaves took part.
  Steps<> counted(Steps<> steps) {
    ++ranks_.begun;
    std::exception_ptr error;
    try {
      co_await steps;
    } catch (...) {
      error = std::current_exception();
    }
    bool has_left = false;
    if (error) {
      const Failure failure = failure_in(error);
      has_left = failure.code() == ErrorCode::not_found && failure.number("left").has_value();
    }
    if (!has_left) ++ranks_.finished;
    if (error) std::rethrow_exception(error);
  }

  /// Copies the memory of one rank to the memory of all ranks.
  Steps<> broadcast(Opened opened, int root) {
    Json::Object fields = *opened.fields.as<Json::Object>();
    fields["call"] = "bcast";
    fields["root"] = root;
    co_await collect(std::move(fields), std::move(opened), 1, root, MPI_DATATYPE_NULL, MPI_OP_NULL);
  }

  /// Copies a table of one rank to new memory of all others.
  Steps<> broadcast_table(std::shared_ptr<Table> table, int root, Device device) {
    const bool is_root = ranks_.rank == root;
    Opened opened;
    if (is_root) {
      try {
        opened = open_parts(split(*table), Access::read);
      } catch (...) {
        opened.error = std::current_exception();
      }
    }
    try {
      co_await agree(call_of("bcast_table", root), opened.error, false);
      const Json fields = co_await broadcast_fields(opened.fields, root);
      if (!is_root) {
        try {
          const TableParts made = make_table(fields, device, root);
          *table = made.table;
          opened = open_parts(made, Access::discard);
        } catch (...) {
          opened.error = std::current_exception();
        }
      }
      co_await agree(call_of("bcast_table"), opened.error, false);
      const std::vector<std::size_t> sizes = sizes_of(fields, root);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        Opened one;
        one.views = {opened.views[i]};
        Json::Object sized = call_of("bcast_table");
        sized["bytes"] = std::uint64_t{sizes[i]};
        co_await collect(std::move(sized), std::move(one), 1, root, MPI_DATATYPE_NULL, MPI_OP_NULL);
      }
    } catch (...) {
      opened.end(false);
      throw;
    }
  }

  /// Combines the elements of all ranks in place.
  Steps<> reduce(Opened opened, Combination how) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int width = 1;
    Json::Object fields = *opened.fields.as<Json::Object>();
    if (!opened.error) {
      const std::string& dtype = member<std::string>(opened.fields, "dtype", ranks_.rank);
      type = type_to_combine(dtype);
      const bool is_float = dtype.starts_with("float"), is_complex = dtype.starts_with("complex");
      if (type == MPI_DATATYPE_NULL || (is_float && !how.is_for_floats) ||
          (is_complex && !how.is_for_complex)) {
        opened.end(false);
        opened.error = std::make_exception_ptr(
            Unsupported(Failure(ErrorCode::unsupported,
                                "MPI cannot combine elements of {dtype} with '{op}'. Convert the "
                                "elements first (to integers for band, bor and bxor, otherwise for "
                                "example to float32).")
                            .with("dtype", dtype)
                            .with("op", how.name)));
      } else {
        check(MPI_Type_size(type, &width), "MPI_Type_size");
      }
    }
    fields["call"] = "allreduce";
    fields["op"] = how.name;
    co_await collect(std::move(fields), std::move(opened), static_cast<std::size_t>(width), -1,
                     type, how.op);
  }

  /// Collects the memory of all ranks.
  Steps<> gather(Opened from, Opened to) {
    const auto end = [&](bool is_good) {
      from.end(is_good);
      to.end(is_good);
    };
    std::exception_ptr error = from.error ? from.error : to.error;
    Json::Object fields = *from.fields.as<Json::Object>();
    fields["call"] = "allgather";
    try {
      if (!error) error = why_not_gathered(from.fields, to.fields);
      const bool is_mine = !error && (from.views[0]->is_staged() || to.views[0]->is_staged());
      const bool is_staged = co_await agree(std::move(fields), error, is_mine);
      const auto bytes =
          static_cast<std::size_t>(member<std::int64_t>(from.fields, "bytes", ranks_.rank));
      error = co_await gather_bytes(from.views[0], to.views[0], bytes);
      if (is_staged) {
        co_await agree(call_of("allgather"), error, false);
      } else if (error) {
        std::rethrow_exception(error);
      }
    } catch (...) {
      end(false);
      throw;
    }
    end(true);
  }

 private:
  /// Describes a collective without memory. A function, because g++ 12 accepts no braces in the
  /// operand of co_await.
  [[nodiscard]] static Json::Object call_of(const std::string& call) { return {{"call", call}}; }
  [[nodiscard]] static Json::Object call_of(const std::string& call, int root) {
    return {{"call", call}, {"root", root}};
  }
  static void note(std::exception_ptr& first) {
    if (!first) first = std::current_exception();
  }

  /// Broadcasts from root, or reduces if root is -1, in pieces of whole elements.
  Steps<> collect(Json fields, Opened opened, std::size_t width, int root, MPI_Datatype type,
                  MPI_Op op) {
    const auto bytes = static_cast<std::size_t>(
        opened.error ? 0 : member<std::int64_t>(fields, "bytes", ranks_.rank));
    std::shared_ptr<Bytes> now = opened.error ? std::make_shared<NoBytes>(0) : opened.views.at(0);
    const bool reads = root < 0 || root == ranks_.rank, writes = root != ranks_.rank;
    const std::string call = member<std::string>(fields, "call", ranks_.rank);
    try {
      const bool is_staged = co_await agree(std::move(fields), opened.error, now->is_staged());
      std::exception_ptr error;
      for (const Part& part : parts_of(bytes, width)) {
        Piece piece;
        try {
          piece =
              reads ? now->fetch(0, part.first, part.count) : now->room(0, part.first, part.count);
        } catch (...) {
          // The other ranks make their calls, so this one must make them too.
          note(error);
          now = std::make_shared<NoBytes>(bytes);
          piece = now->room(0, part.first, part.count);
        }
        until ready([&piece] { return piece.is_ready(); });
        co_await ready;
        const auto operation = std::make_shared<Operation>();
        operation->memory = now;
        if (root < 0) {
          const int count = static_cast<int>(part.count / width);
          check(MPI_Iallreduce(MPI_IN_PLACE, piece.address, count, type, op, ranks_.bodies,
                               &operation->request),
                "MPI_Iallreduce");
        } else {
          check(MPI_Ibcast(piece.address, static_cast<int>(part.count), MPI_BYTE, root,
                           ranks_.bodies, &operation->request),
                "MPI_Ibcast");
        }
        until complete = ranks_.complete(operation, Ranks::everybody);
        co_await complete;
        if (!writes) continue;
        try {
          now->store(0, part.first, part.count);
        } catch (...) {
          note(error);
          now = std::make_shared<NoBytes>(bytes);
        }
      }
      if (is_staged) {
        co_await agree(call_of(call), error, false);
      } else if (error) {
        std::rethrow_exception(error);
      }
    } catch (...) {
      opened.end(false);
      throw;
    }
    opened.end(true);
  }

  /// Gathers the bytes of all ranks in pieces. Returns the error of this rank, if it failed.
  Steps<std::exception_ptr> gather_bytes(std::shared_ptr<Bytes> from, std::shared_ptr<Bytes> to,
                                         std::size_t bytes) {
    std::exception_ptr error;
    const auto ranks = static_cast<std::size_t>(ranks_.size);
    const std::size_t longest = std::max<std::size_t>(1, piece_bytes / ranks);
    for (std::size_t first = 0; first < bytes; first += longest) {
      const std::size_t count = std::min(longest, bytes - first);
      Piece piece;
      std::pair<Piece, std::size_t> room;
      try {
        piece = from->fetch(0, first, count);
        room = to->room_of_ranks(first, count, bytes, ranks);
      } catch (...) {
        note(error);
        from = std::make_shared<NoBytes>(count);
        to = std::make_shared<NoBytes>(count);
        piece = from->fetch(0, 0, count);
        room = to->room_of_ranks(0, count, bytes, ranks);
      }
      until ready([&] { return piece.is_ready() && room.first.is_ready(); });
      co_await ready;
      MPI_Datatype block = MPI_DATATYPE_NULL, spread = MPI_DATATYPE_NULL;
      const int length = static_cast<int>(count);
      check(MPI_Type_contiguous(length, MPI_BYTE, &block), "MPI_Type_contiguous");
      check(MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(room.second), &spread),
            "MPI_Type_create_resized");
      check(MPI_Type_commit(&spread), "MPI_Type_commit");
      const auto operation = std::make_shared<Operation>();
      operation->memory =
          std::make_shared<std::pair<std::shared_ptr<Bytes>, std::shared_ptr<Bytes>>>(from, to);
      check(MPI_Iallgather(piece.address, length, MPI_BYTE, room.first.address, 1, spread,
                           ranks_.bodies, &operation->request),
            "MPI_Iallgather");
      // MPI keeps the types until the operation is complete.
      check(MPI_Type_free(&spread), "MPI_Type_free");
      check(MPI_Type_free(&block), "MPI_Type_free");
      until complete = ranks_.complete(operation, Ranks::everybody);
      co_await complete;
      try {
        to->store_of_ranks(first, count, bytes, ranks);
      } catch (...) {
        note(error);
        from = std::make_shared<NoBytes>(count);
        to = std::make_shared<NoBytes>(count);
      }
    }
    co_return error;
  }

  /// Throws an error on every rank unless all ranks have the same description and none has failed.
  /// Returns whether memory of one rank is staged: then copies may fail later, and the ranks agree
  /// once more.
  Steps<bool> agree(Json fields, std::exception_ptr error, bool is_staged) {
    if (error) {
      fields = Json::Object{{"error", fields_of(failure_in(error))}, {"rank", ranks_.rank}};
    }
    std::string text = pack(fields);
    const std::int64_t digest = digest_of(text);
    const auto numbers = std::make_shared<std::array<std::int64_t, 3>>();
    *numbers = {digest, -digest, is_staged ? 1 : 0};
    const auto asked = std::make_shared<Operation>();
    asked->memory = numbers;
    check(MPI_Iallreduce(MPI_IN_PLACE, numbers->data(), 3, MPI_INT64_T, MPI_MAX, ranks_.bodies,
                         &asked->request),
          "MPI_Iallreduce");
    until answered = ranks_.complete(asked, Ranks::everybody);
    co_await answered;
    if ((*numbers)[0] == -(*numbers)[1] && !error) co_return (*numbers)[2] != 0;
    if (ranks_.size > 1) {
      const auto size = static_cast<std::size_t>(ranks_.size);
      const auto blocks = std::make_shared<std::string>((size + 1) * block_bytes, '\0');
      if (text.size() > block_bytes) {
        const Failure failure(ErrorCode::size_overflow, "the description of the call is too long.");
        text = pack(Json::Object{{"error", fields_of(failure)}, {"rank", ranks_.rank}});
      }
      char* const mine = blocks->data() + size * block_bytes;
      std::memcpy(mine, text.data(), text.size());
      const auto told = std::make_shared<Operation>();
      told->memory = blocks;
      check(MPI_Iallgather(mine, block_bytes, MPI_BYTE, blocks->data(), block_bytes, MPI_BYTE,
                           ranks_.bodies, &told->request),
            "MPI_Iallgather");
      until heard = ranks_.complete(told, Ranks::everybody);
      co_await heard;
      if (!error) raise_disagreement(*blocks);
    }
    if (error) std::rethrow_exception(error);
    co_return false;  // not reached: a rank alone agrees with itself
  }

  /// Throws the error of a collective on a rank that did not fail itself.
  [[noreturn]] void raise_disagreement(const std::string& blocks) const {
    std::vector<Json> all;
    for (int rank = 0; rank < ranks_.size; ++rank) {
      std::string_view block(blocks.data() + static_cast<std::size_t>(rank) * block_bytes,
                             block_bytes);
      block = block.substr(0, block.find_last_not_of('\0') + 1);
      all.push_back(unpack(block, rank));
      if (const Json* error = all.back().find("error")) {
        raise(failure_of(*error, "rank {rank} could not take part: {text}", rank));
      }
    }
    const auto describes = [](const Json& fields, int rank) {
      std::string text = member<std::string>(fields, "call", rank);
      if (fields.find("dtype") != nullptr) text += " of " + text_of(fields, rank);
      if (fields.find("root") != nullptr) {
        text += " with root " + std::to_string(member<std::int64_t>(fields, "root", rank));
      }
      if (fields.find("op") != nullptr) {
        text += " with operation '" + member<std::string>(fields, "op", rank) + "'";
      }
      return text;
    };
    for (const char* const name : {"call", "root", "op", "dtype", "shape"}) {
      for (int rank = 1; rank < ranks_.size; ++rank) {
        const Json& there = all[static_cast<std::size_t>(rank)];
        const Json *const a = all[0].find(name), *const b = there.find(name);
        if (a == b || (a != nullptr && b != nullptr && *a == *b)) continue;
        const bool is_memory =
            name == std::string_view("dtype") || name == std::string_view("shape");
        raise(Failure(is_memory ? compare(all[0], there).code : ErrorCode::invalid_argument,
                      "all ranks of a collective must use the same {name}: rank 0 calls {first}, "
                      "and rank {rank} calls {other}.")
                  .with("name", name)
                  .with("rank", static_cast<std::uint64_t>(rank))
                  .with("first", describes(all[0], 0))
                  .with("other", describes(there, rank)));
      }
    }
    raise(Failure(ErrorCode::size_mismatch,
                  "the ranks of a collective describe their memory in different ways. Use one "
                  "version of Tern on all ranks."));
  }

  Steps<Json> broadcast_fields(Json fields, int root) {
    const auto text = std::make_shared<std::string>(ranks_.rank == root ? pack(fields) : "");
    const auto length = std::make_shared<std::int64_t>(static_cast<std::int64_t>(text->size()));
    const auto sized = std::make_shared<Operation>();
    sized->memory = length;
    check(MPI_Ibcast(length.get(), 1, MPI_INT64_T, root, ranks_.bodies, &sized->request),
          "MPI_Ibcast");
    until known = ranks_.complete(sized, Ranks::everybody);
    co_await known;
    text->resize(static_cast<std::size_t>(*length));
    const auto carried = std::make_shared<Operation>();
    carried->memory = text;
    check(MPI_Ibcast(text->data(), static_cast<int>(*length), MPI_BYTE, root, ranks_.bodies,
                     &carried->request),
          "MPI_Ibcast");
    until arrived = ranks_.complete(carried, Ranks::everybody);
    co_await arrived;
    co_return unpack(*text, root);
  }

  [[nodiscard]] std::exception_ptr why_not_gathered(const Json& from, const Json& to) const {
    const auto ranks = static_cast<std::int64_t>(ranks_.size);
    const bool is_same = *from.find("dtype") == *to.find("dtype");
    const auto bytes = member<std::int64_t>(from, "bytes", ranks_.rank);
    if (is_same && member<std::int64_t>(to, "bytes", ranks_.rank) == bytes * ranks) return {};
    const Failure failure =
        Failure(is_same ? ErrorCode::size_mismatch : ErrorCode::type_mismatch,
                "{ranks} ranks cannot gather {each} each into {result}. Use the same dtype for the "
                "result, and {ranks} times the elements.")
            .with("ranks", static_cast<std::uint64_t>(ranks))
            .with("each", text_of(from, ranks_.rank))
            .with("result", text_of(to, ranks_.rank));
    try {
      raise(failure);
    } catch (...) {
      return std::current_exception();
    }
  }

  Ranks& ranks_;
};

}  // namespace tern::mpi::detail
