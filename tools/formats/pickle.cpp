#include "tools/formats/pickle.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "tern/core/error.hpp"

namespace tern::tools {
namespace {

/// The opcodes of data. pickletools.py of Python describes them.
enum Opcode : std::uint8_t {
  op_mark = '(',
  op_stop = '.',
  op_pop = '0',
  op_pop_mark = '1',
  op_dup = '2',
  op_none = 'N',
  op_true = 0x88,
  op_false = 0x89,
  op_int4 = 'J',
  op_int1 = 'K',
  op_int2 = 'M',
  op_long1 = 0x8A,
  op_long4 = 0x8B,
  op_float = 'G',
  op_unicode4 = 'X',
  op_unicode1 = 0x8C,
  op_unicode8 = 0x8D,
  op_string4 = 'T',
  op_string1 = 'U',
  op_bytes4 = 'B',
  op_bytes1 = 'C',
  op_bytes8 = 0x8E,
  op_byte_array8 = 0x96,
  op_empty_list = ']',
  op_append = 'a',
  op_appends = 'e',
  op_list = 'l',
  op_empty_dict = '}',
  op_set_item = 's',
  op_set_items = 'u',
  op_dict = 'd',
  op_empty_tuple = ')',
  op_tuple = 't',
  op_tuple1 = 0x85,
  op_tuple2 = 0x86,
  op_tuple3 = 0x87,
  op_get1 = 'h',
  op_get4 = 'j',
  op_put1 = 'q',
  op_put4 = 'r',
  op_memoize = 0x94,
  op_protocol = 0x80,
  op_frame = 0x95,
};

/// Returns the name of an opcode that the reader refuses, or null for a byte that is not an opcode.
const char* refused_name(std::uint8_t opcode) {
  switch (opcode) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x98:
      return "READONLY_BUFFER";
    case 0x8F:
      return "EMPTY_SET";
    case 0x90:
      return "ADDITEMS";
    case 0x91:
      return "FROZENSET";
    case 'I':
      return "INT";
    case 'L':
      return "LONG";
    case 'F':
      return "FLOAT";
    case 'S':
      return "STRING";
    case 'V':
      return "UNICODE";
    case 'g':
      return "GET";
    case 'p':
      return "PUT";
    default:
      return nullptr;
  }
}

constexpr std::uint32_t no_value = UINT32_MAX;
constexpr std::uint8_t first_protocol = 2, last_protocol = 5;

}  // namespace

/// Runs the opcodes of a pickle. They form a program for a machine with a stack of values, marks in
/// the stack, and a memo of values by number.
class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : bytes_(bytes) {
    pickle_.bytes_ = bytes;
    none_ = add(Kind::none);
    false_ = add(Kind::boolean);
    true_ = add(Kind::boolean, 1);
    small_.fill(no_value);
  }

  Result<Pickle> read() {
    // Values, texts and members are counted in 32 bits.
    if (bytes_.size() >= UINT32_MAX / 2) {
      return Failure(ErrorCode::bad_format,
                     "'{path}' has {bytes}, but Tern reads only pickles that are smaller than "
                     "2 GiB. Record fewer events: lower max_entries of "
                     "torch.cuda.memory._record_memory_history().")
          .with_bytes("bytes", bytes_.size());
    }
    while (why_ == nullptr && !is_stopped_) step();
    if (why_ == nullptr) return std::move(pickle_);
    Failure failure(ErrorCode::bad_format,
                    refused_ == nullptr
                        ? "'{path}' cannot be read as a pickle: {why} at byte {at}. The file is "
                          "truncated, damaged, or not a memory snapshot."
                        : "'{path}' contains the pickle opcode {opcode} at byte {at}, which Tern "
                          "does not accept. A memory snapshot contains only dicts, lists, numbers "
                          "and strings. Write it with torch.cuda.memory._dump_snapshot().");
    failure.with("why", why_).with("at", at_);
    if (refused_ != nullptr) failure.with("opcode", refused_);
    return failure;
  }

 private:
  using Kind = Pickle::Kind;
  using Index = Pickle::Index;

  void fail(const char* why) noexcept {
    if (why_ == nullptr) why_ = why;
  }

  // --- Bytes

  [[nodiscard]] std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - next_) {
      fail("unexpected end of the file");
      return {};
    }
    const std::string_view taken = bytes_.substr(next_, static_cast<std::size_t>(count));
    next_ += static_cast<std::size_t>(count);
    return taken;
  }
  /// Returns a little-endian number of so many bytes, or 0 at the end.
  std::uint64_t take_number(std::size_t count) {
    const std::string_view taken = take(count);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      value |= std::uint64_t{static_cast<std::uint8_t>(taken[i])} << (8 * i);
    }
    return value;
  }

  // --- Values

  Index add(Kind kind, std::uint64_t value = 0, bool is_negative = false,
            std::uint32_t length = 0) {
    pickle_.nodes_.push_back({kind, is_negative, length, value});
    return static_cast<Index>(pickle_.nodes_.size() - 1);
  }
  Index add_container(Kind kind, std::vector<Index> items) {
    pickle_.contents_.push_back(std::move(items));
    return add(kind, pickle_.contents_.size() - 1);
  }
  void push(Index value) { stack_.push_back(value); }
  void push_text(Kind kind, std::uint64_t length) {
    const std::string_view text = take(length);
    push(add(kind, next_ - text.size(), false, static_cast<std::uint32_t>(text.size())));
  }
  /// Numbers below 256 are in most pickles many times.
  void push_small(std::uint64_t value) {
    Index& known = small_[value & 0xFF];
    if (known == no_value) known = add(Kind::integer, value & 0xFF);
    push(known);
  }
  void push_signed(std::int64_t value) {
    push(add(Kind::integer,
             value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value),
             value < 0));
  }
  /// A little-endian number in two's complement.
  void push_long(std::uint64_t count) {
    std::string_view digits = take(count);
    const bool is_negative = !digits.empty() && static_cast<std::uint8_t>(digits.back()) >= 0x80;
    const char filler = is_negative ? '\xFF' : '\0';
    while (!digits.empty() && digits.back() == filler) digits.remove_suffix(1);
    if (digits.size() > 8) return push(add(Kind::huge_integer));
    std::uint64_t value = is_negative ? UINT64_MAX : 0;
    value = digits.size() < 8 ? value << (8 * digits.size()) : 0;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      value |= std::uint64_t{static_cast<std::uint8_t>(digits[i])} << (8 * i);
    }
    if (is_negative && value == 0) return push(add(Kind::huge_integer));
    push(add(Kind::integer, is_negative ? 0 - value : value, is_negative));
  }
  void push_real() {
    const std::string_view taken = take(8);
    std::uint64_t bits = 0;
    for (const char byte : taken) bits = bits << 8 | static_cast<std::uint8_t>(byte);
    push(add(Kind::real, bits));
  }

  // --- The stack

  /// Values below the last mark cannot be taken.
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  /// Returns none if there is no value.
  Index pop() {
    if (stack_.size() <= floor()) {
      fail("no value on the stack");
      return none_;
    }
    const Index value = stack_.back();
    stack_.pop_back();
    return value;
  }
  [[nodiscard]] Index top() {
    if (stack_.size() > floor()) return stack_.back();
    fail("no value on the stack");
    return none_;
  }
  /// Takes the values behind the last mark, and the mark.
  std::vector<Index> pop_marked() {
    if (marks_.empty()) {
      fail("no mark on the stack");
      return {};
    }
    const auto first = stack_.begin() + marks_.back();
    std::vector<Index> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(std::size_t count) {
    std::vector<Index> values(count);
    for (std::size_t i = count; i > 0; --i) values[i - 1] = pop();
    push(add_container(Kind::tuple, std::move(values)));
  }
  void push_dict(std::vector<Index> values) {
    if (values.size() % 2 != 0) return fail("a dict key without a value");
    push(add_container(Kind::dict, std::move(values)));
  }
  /// Adds values to the list or dict on the stack.
  void extend(Kind kind, const std::vector<Index>& values) {
    const Index target = top();
    if (why_ != nullptr) return;
    if (pickle_.nodes_[target].kind != kind) return fail("no list or dict on the stack");
    if (kind == Kind::dict && values.size() % 2 != 0) return fail("a dict key without a value");
    std::vector<Index>& contents = pickle_.contents_[pickle_.nodes_[target].value];
    contents.insert(contents.end(), values.begin(), values.end());
  }

  // --- The memo

  void put(std::uint64_t number) {
    // Writers of pickles count from 0, and each entry takes at least one byte.
    if (number > bytes_.size()) return fail("a memo index larger than the file");
    if (number >= memo_.size()) memo_.resize(static_cast<std::size_t>(number) + 1, no_value);
    Index& slot = memo_[static_cast<std::size_t>(number)];
    if (slot == no_value) ++memo_count_;
    slot = top();
  }
  void get(std::uint64_t number) {
    if (number >= memo_.size() || memo_[static_cast<std::size_t>(number)] == no_value) {
      return fail("a reference to an empty memo entry");
    }
    push(memo_[static_cast<std::size_t>(number)]);
  }

  // --- Opcodes

  void step() {
    at_ = next_;
    const auto opcode = static_cast<std::uint8_t>(take_number(1));
    if (why_ != nullptr) return;
    if (!step_constant(opcode) && !step_text(opcode) && !step_container(opcode) &&
        !step_machine(opcode)) {
      refused_ = refused_name(opcode);
      fail(refused_ != nullptr ? "an opcode that is not accepted" : "an unknown opcode");
    }
  }
  bool step_constant(std::uint8_t opcode) {
    switch (opcode) {
      case op_none:
        return push(none_), true;
      case op_true:
        return push(true_), true;
      case op_false:
        return push(false_), true;
      case op_int1:
        return push_small(take_number(1)), true;
      case op_int2:
        return push_signed(static_cast<std::int64_t>(take_number(2))), true;
      case op_int4:
        return push_signed(static_cast<std::int32_t>(take_number(4))), true;
      case op_long1:
        return push_long(take_number(1)), true;
      case op_long4:
        // The length is signed; a negative one is longer than any file.
        return push_long(take_number(4)), true;
      case op_float:
        return push_real(), true;
      default:
        return false;
    }
  }
  bool step_text(std::uint8_t opcode) {
    switch (opcode) {
      case op_unicode1:
      case op_string1:
        return push_text(Kind::text, take_number(1)), true;
      case op_unicode4:
      case op_string4:
        return push_text(Kind::text, take_number(4)), true;
      case op_unicode8:
        return push_text(Kind::text, take_number(8)), true;
      case op_bytes1:
        return push_text(Kind::bytes, take_number(1)), true;
      case op_bytes4:
        return push_text(Kind::bytes, take_number(4)), true;
      case op_bytes8:
      case op_byte_array8:
        return push_text(Kind::bytes, take_number(8)), true;
      default:
        return false;
    }
  }
  bool step_container(std::uint8_t opcode) {
    switch (opcode) {
      case op_empty_list:
        return push(add_container(Kind::list, {})), true;
      case op_empty_dict:
        return push(add_container(Kind::dict, {})), true;
      case op_empty_tuple:
        return push_tuple(0), true;
      case op_tuple1:
      case op_tuple2:
      case op_tuple3:
        return push_tuple(opcode - op_tuple1 + 1U), true;
      case op_list:
        return push(add_container(Kind::list, pop_marked())), true;
      case op_tuple:
        return push(add_container(Kind::tuple, pop_marked())), true;
      case op_dict:
        return push_dict(pop_marked()), true;
      case op_append: {
        const Index value = pop();
        return extend(Kind::list, {value}), true;
      }
      case op_set_item: {
        const Index value = pop();
        const Index key = pop();
        return extend(Kind::dict, {key, value}), true;
      }
      case op_appends:
        return extend(Kind::list, pop_marked()), true;
      case op_set_items:
        return extend(Kind::dict, pop_marked()), true;
      default:
        return false;
    }
  }
  bool step_machine(std::uint8_t opcode) {
    switch (opcode) {
      case op_protocol: {
        const std::uint64_t version = take_number(1);
        if (version > last_protocol) fail("an unknown pickle protocol");
        return true;
      }
      case op_frame:
        // Frames are for readers of a stream.
        if (take_number(8) > bytes_.size() - next_) fail("unexpected end of the file");
        return true;
      case op_mark:
        return marks_.push_back(static_cast<std::uint32_t>(stack_.size())), true;
      case op_pop:
        // Python drops a mark, too.
        if (!marks_.empty() && stack_.size() == marks_.back()) return marks_.pop_back(), true;
        return static_cast<void>(pop()), true;
      case op_pop_mark:
        return static_cast<void>(pop_marked()), true;
      case op_dup:
        return push(top()), true;
      case op_get1:
        return get(take_number(1)), true;
      case op_get4:
        return get(take_number(4)), true;
      case op_put1:
        return put(take_number(1)), true;
      case op_put4:
        return put(take_number(4)), true;
      case op_memoize:
        return put(memo_count_), true;
      case op_stop:
        pickle_.root_ = pop();
        is_stopped_ = why_ == nullptr;
        return true;
      default:
        return false;
    }
  }

  const std::string_view bytes_;
  std::size_t next_ = 0, at_ = 0;
  Pickle pickle_;
  std::vector<Index> stack_, memo_;
  std::vector<std::uint32_t> marks_;
  std::uint64_t memo_count_ = 0;
  Index none_ = 0, false_ = 0, true_ = 0;
  std::array<Index, 256> small_;
  bool is_stopped_ = false;
  const char* why_ = nullptr;
  const char* refused_ = nullptr;
};

Result<Pickle> Pickle::try_read(std::string_view bytes) { return PickleReader(bytes).read(); }

bool Pickle::is_pickle(std::string_view bytes) noexcept {
  return bytes.size() >= 2 && static_cast<std::uint8_t>(bytes[0]) == op_protocol &&
         static_cast<std::uint8_t>(bytes[1]) >= first_protocol &&
         static_cast<std::uint8_t>(bytes[1]) <= last_protocol;
}

std::string_view Pickle::text(Index value) const noexcept {
  const Node& node = nodes_[value];
  if (node.kind != Kind::text && node.kind != Kind::bytes) return {};
  return bytes_.substr(static_cast<std::size_t>(node.value), node.length);
}

std::optional<std::uint64_t> Pickle::number(Index value) const noexcept {
  const Node& node = nodes_[value];
  if (node.kind != Kind::integer || node.is_negative) return std::nullopt;
  return node.value;
}

std::span<const Pickle::Index> Pickle::items(Index value) const noexcept {
  const Node& node = nodes_[value];
  if (node.kind < Kind::list) return {};
  return contents_[static_cast<std::size_t>(node.value)];
}

}  // namespace tern::tools
