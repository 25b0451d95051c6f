#include "language/kernel_run.hpp"

#include <algorithm>
#include <cstring>

#include "language/arithmetic.hpp"
#include "language/names.hpp"

namespace tern::language {
namespace {

/// Reads a value of an argument into the form of a register.
std::uint64_t read_value(const void* from, Scalar type) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, from, sizeof value);
    return to_register(value);
  };
  switch (type) {
    case Scalar::boolean:
      return as(std::uint8_t{}) != 0;
    case Scalar::i8:
      return as(std::int8_t{});
    case Scalar::u8:
      return as(std::uint8_t{});
    case Scalar::i16:
      return as(std::int16_t{});
    case Scalar::u16:
      return as(std::uint16_t{});
    case Scalar::i32:
      return as(std::int32_t{});
    case Scalar::u32:
      return as(std::uint32_t{});
    case Scalar::i64:
      return as(std::int64_t{});
    case Scalar::u64:
      return as(std::uint64_t{});
    case Scalar::f32:
      return as(float{});
    case Scalar::f64:
      return as(double{});
  }
  return 0;
}
void write_value(void* to, Scalar type, std::uint64_t bits) {
  // The low bytes of the register, whatever the order of bytes of the host.
  const auto as = [&]<class T>(T) {
    const T value = static_cast<T>(bits);
    std::memcpy(to, &value, sizeof value);
  };
  switch (bytes_of(type)) {
    case 1:
      return as(std::uint8_t{});
    case 2:
      return as(std::uint16_t{});
    case 4:
      return as(std::uint32_t{});
    default:
      return as(std::uint64_t{});
  }
}

std::vector<AccessTable::Range> ranges(const KernelCode& code, std::span<const Argument> arguments,
                                       const RunOptions& options) {
  std::vector<AccessTable::Range> ranges(code.arrays.size());
  if (!options.checks_accesses || arguments.empty()) return ranges;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const KernelCode::Array& array = code.arrays[i];
    if (array.is_shared) continue;
    const Argument& argument = arguments[array.argument];
    const bool is_input = array.intent == Intent::in;
    ranges[i] = {.address = static_cast<const std::byte*>(argument.address),
                 .elements = argument.elements,
                 .element_bytes = static_cast<std::uint32_t>(bytes_of(array.type)),
                 .is_read = array.is_read,
                 // Outputs have stamps even if the text never writes them, to see that.
                 .is_written = (array.is_written && !is_input) || array.intent == Intent::out,
                 .is_atomic = array.is_atomic && !is_input};
  }
  return ranges;
}

}  // namespace

KernelRun::KernelRun(const Program& program, const KernelCode& code, const LaunchShape& shape,
                     std::span<const Argument> arguments, const RunOptions& options)
    : program_(program),
      code_(code),
      shape_(shape),
      options_(options),
      threads_(volume(shape.block, Interpreter::max_block_threads)),
      blocks_(volume(shape.grid, Interpreter::max_blocks)),
      block_order_(blocks_, options.order_seed),
      registers_(code.register_count),
      arrays_(code.arrays.size()),
      table_(ranges(code, arguments, options)) {
  for (const auto& [target, bits] : code.constants) registers_[target] = bits;
  set_coordinate(Coordinate::block_size, shape.block);
  set_coordinate(Coordinate::grid_size, shape.grid);
  if (arguments.empty() && !program.parameters.empty()) return;
  for (std::size_t i = 0; i < arrays_.size(); ++i) bind(i, arguments);
  for (const KernelCode::Value& value : code.values) {
    values_.push_back(read_value(arguments[value.argument].value, value.type));
    registers_[value.target] = values_.back();
  }
}

void KernelRun::bind(std::size_t i, std::span<const Argument> arguments) {
  const KernelCode::Array& array = code_.arrays[i];
  Array& bound = arrays_[i];
  bound.begins_unwritten =
      array.is_shared || array.intent == Intent::out || array.intent == Intent::part;
  if (array.is_shared) {
    shared_memory_.push_back(std::make_unique<std::byte[]>(array.elements * bytes_of(array.type)));
    bound.address = shared_memory_.back().get();
    bound.elements = array.elements;
    if (options_.checks_accesses) bound.stamps = table_.shared_stamps(array.elements);
    return;
  }
  bound.address = static_cast<std::byte*>(arguments[array.argument].address);
  bound.elements = arguments[array.argument].elements;
  bound.is_input = array.intent == Intent::in;
  bound.stamps = table_.stamps(i);
  if (array.size_register != KernelCode::none) registers_[array.size_register] = bound.elements;
}

// --- Blocks and threads

void KernelRun::run_body() {
  for (std::uint64_t i = 0; i < blocks_ && !is_stopped_; ++i) {
    begin_block(i);
    if (program_.form == Form::block) {
      begin_whole_block();
      execute(code_.body);
      is_whole_block_ = false;
    } else {
      const LaunchOrder order(threads_, seed_of_phase());
      for (std::uint64_t t = 0; t < threads_ && !is_stopped_; ++t) run_thread(order[t]);
    }
  }
  find_unwritten_outputs();
}

void KernelRun::set_coordinate(Coordinate coordinate, const Position3& value) {
  for (std::uint32_t axis = 0; axis < 3; ++axis) {
    registers_[coordinate_register(coordinate, axis)] = value[axis];
  }
}

std::uint64_t KernelRun::seed_of_phase() const {
  return options_.order_seed == 0 ? 0 : options_.order_seed + table_.phase();
}

/// A kernel may assign a parameter that is a value: it is a copy.
void KernelRun::restore_values() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (code_.values[i].is_changed) registers_[code_.values[i].target] = values_[i];
  }
}

void KernelRun::begin_block(std::uint64_t number) {
  table_.begin_block();
  block_begins_.push_back(table_.phase());
  block_ = position(block_order_[number], shape_.grid);
  set_coordinate(Coordinate::block, block_);
  restore_values();
}

void KernelRun::begin_thread(std::uint64_t thread) {
  table_.begin_thread(static_cast<std::uint32_t>(thread));
  thread_ = position(thread, shape_.block);
  for (std::uint32_t axis = 0; axis < 3; ++axis) {
    registers_[coordinate_register(Coordinate::thread, axis)] = thread_[axis];
    registers_[coordinate_register(Coordinate::index, axis)] =
        block_[axis] * shape_.block[axis] + thread_[axis];
  }
}

void KernelRun::run_thread(std::uint64_t thread) {
  begin_thread(thread);
  // Element kernels have one thread for each element of the first array.
  if (program_.form == Form::element && !arrays_.empty() &&
      registers_[coordinate_register(Coordinate::index, 0)] >= arrays_[0].elements) {
    return;
  }
  restore_values();
  execute(code_.body);
}

void KernelRun::begin_whole_block() {
  is_whole_block_ = true;
  table_.begin_thread(AccessTable::whole_block);
}

void KernelRun::run_threads(std::uint32_t begin, std::uint32_t place) {
  // Stamps count phases in 32 bits.
  if (table_.phase() > 0xfffffff0) return stop_as_endless(place, table_.phase());
  table_.begin_phase();
  is_whole_block_ = false;
  const LaunchOrder order(threads_, seed_of_phase());
  for (std::uint64_t t = 0; t < threads_ && !is_stopped_; ++t) {
    begin_thread(order[t]);
    execute(begin);
  }
  table_.begin_phase();
  begin_whole_block();
}

// --- Reductions

void KernelRun::run_map(std::uint64_t elements, std::byte* results) {
  reduce_blocks(elements, results, [&](std::uint64_t lane, std::uint64_t i) {
    table_.begin_thread(static_cast<std::uint32_t>(lane));
    registers_[coordinate_register(Coordinate::index, 0)] = i;
    return evaluate(code_.map);
  });
}

void KernelRun::run_combine(const std::byte* values, std::uint64_t count, std::byte* results) {
  const std::uint64_t stride = bytes_of(program_.result);
  reduce_blocks(count, results, [&](std::uint64_t, std::uint64_t i) {
    return read_value(values + i * stride, program_.result);
  });
}

std::uint64_t KernelRun::evaluate(std::uint32_t begin) {
  execute(begin);
  return registers_[code_.result];
}

std::uint64_t KernelRun::combined(std::uint64_t left, std::uint64_t right) {
  registers_[code_.left] = left;
  registers_[code_.right] = right;
  return evaluate(code_.combine);
}

/// The order of operations is the same on every device, so the bits of the result are too.
void KernelRun::reduce_blocks(
    std::uint64_t count, std::byte* results,
    const std::function<std::uint64_t(std::uint64_t, std::uint64_t)>& value_at) {
  std::array<std::uint64_t, reduction_lanes> lanes;
  for (std::uint64_t k = 0; k < blocks_ && !is_stopped_; ++k) {
    const std::uint64_t block = block_order_[k];
    begin_block(k);
    const std::uint64_t begin = block * reduction_block_elements;
    const std::uint64_t end = std::min(count, begin + reduction_block_elements);
    for (std::uint64_t lane = 0; lane < reduction_lanes; ++lane) {
      thread_ = {lane, 0, 0};
      lanes[lane] = evaluate(code_.identity);
      for (std::uint64_t i = begin + lane; i < end; i += reduction_lanes) {
        lanes[lane] = combined(lanes[lane], value_at(lane, i));
      }
    }
    for (std::uint64_t near = reduction_lanes / 2; near > 0; near /= 2) {
      for (std::uint64_t lane = 0; lane < near; ++lane) {
        thread_ = {lane, 0, 0};
        lanes[lane] = combined(lanes[lane], lanes[lane + near]);
      }
    }
    write_value(results + block * bytes_of(program_.result), program_.result, lanes[0]);
  }
}

// --- Mistakes

Mistake& KernelRun::add_mistake(Mistake::Kind kind) {
  Mistake& mistake = mistakes_.emplace_back();
  mistake.kind = kind;
  mistake.kernel = program_.name;
  mistake.form = program_.form;
  return mistake;
}

Mistake* KernelRun::note(Mistake::Kind kind, std::uint32_t place) {
  const std::uint64_t key = std::uint64_t{place} << 8 | static_cast<std::uint64_t>(kind);
  const auto [it, is_new] = noted_.try_emplace(key, mistakes_.size());
  if (!is_new) {
    ++mistakes_[it->second].count;
    return nullptr;
  }
  Mistake& mistake = add_mistake(kind);
  mistake.at = code_.places[place].at;
  mistake.access = code_.places[place].access;
  mistake.who = {block_, is_whole_block_ ? Position3{} : thread_, is_whole_block_};
  return &mistake;
}

Mistake* KernelRun::note_access(Mistake::Kind kind, const Instruction& i, std::uint64_t index) {
  const CodePlace& where = code_.places[i.place];
  // An update is a load and a store, and counts once.
  if (where.access == AccessKind::update) {
    const Noted now{kind, i.place, index, thread_, block_};
    if (i.code >= Code::store_boolean && last_update_ == now) return nullptr;
    last_update_ = now;
  }
  Mistake* const mistake = note(kind, i.place);
  if (mistake == nullptr) return nullptr;
  mistake->name = program_.variables[where.variable].name;
  mistake->is_array = true;
  mistake->is_shared = code_.arrays[i.c].is_shared;
  mistake->index = index;
  mistake->is_negative = where.has_signed_index && static_cast<std::int64_t>(index) < 0;
  mistake->elements = arrays_[i.c].elements;
  return mistake;
}

void KernelRun::check_written(const Array& array, const Instruction& i, std::uint64_t index) {
  if (table_.is_written(array.stamps, index)) [[likely]]
    return;
  note_access(
      array.stamps.is_shared ? Mistake::Kind::uninitialised_read : Mistake::Kind::read_of_output, i,
      index);
}

void KernelRun::note_race(const Instruction& i, std::uint64_t index, AccessStamp earlier) {
  const bool is_in_block = table_.is_of_this_block(earlier);
  Mistake* const mistake =
      note_access(is_in_block ? Mistake::Kind::thread_race : Mistake::Kind::block_race, i, index);
  if (mistake == nullptr) return;
  ThreadId& other = mistake->other_who;
  other.block = is_in_block ? block_ : block_of(AccessTable::phase_of(earlier));
  other.is_whole_block = AccessTable::thread_of(earlier) == AccessTable::whole_block;
  if (!other.is_whole_block) {
    other.thread = position(AccessTable::thread_of(earlier), shape_.block);
  }
  const CodePlace& where =
      code_.places[std::min<std::size_t>(AccessTable::place_of(earlier), code_.places.size() - 1)];
  mistake->other = where.at;
  mistake->other_access = where.access;
  mistake->other_name = program_.variables[where.variable].name;
}

Position3 KernelRun::block_of(std::uint32_t phase) const {
  const auto after = std::upper_bound(block_begins_.begin(), block_begins_.end(), phase);
  const auto number = static_cast<std::uint64_t>(after - block_begins_.begin() - 1);
  return position(block_order_[number], shape_.grid);
}

void KernelRun::stop_as_endless(std::uint32_t place, std::uint64_t steps) {
  if (Mistake* mistake = note(Mistake::Kind::endless, place)) mistake->steps = steps;
  is_stopped_ = true;
}

void KernelRun::find_unwritten_outputs() {
  for (std::size_t i = 0; i < arrays_.size() && !is_stopped_; ++i) {
    const Array& array = arrays_[i];
    const KernelCode::Array& declared = code_.arrays[i];
    if (declared.intent != Intent::out || array.stamps.write == nullptr) continue;
    std::uint64_t missing = 0, first = 0;
    for (std::uint64_t index = 0; index < array.elements; ++index) {
      if (table_.is_written(array.stamps, index)) continue;
      if (missing++ == 0) first = index;
    }
    if (missing == 0) continue;
    Mistake& mistake = add_mistake(Mistake::Kind::unwritten_output);
    mistake.at = program_.parameters[declared.argument].at;
    mistake.access = AccessKind::write;
    mistake.name = program_.variables[declared.variable].name;
    mistake.is_array = true;
    mistake.index = first;
    mistake.elements = array.elements;
    mistake.missing = missing;
  }
}

}  // namespace tern::language
