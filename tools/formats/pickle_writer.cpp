#include "tools/formats/pickle_writer.hpp"

#include <utility>

#include "tools/formats/utf8.hpp"

namespace tern::tools {
namespace {

/// Readers keep the members behind a mark on a stack. PyTorch's viewer passes them to a function,
/// and browsers bound the number of arguments.
constexpr std::uint64_t members_per_mark = 1000;

}  // namespace

PickleWriter::PickleWriter(Output& out) : out_(out) { out_.write("\x80\x02"); }

void PickleWriter::put(std::uint64_t value, std::size_t bytes) {
  char digits[8];
  for (std::size_t i = 0; i < bytes; ++i) digits[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  out_.write({digits, bytes});
}

void PickleWriter::begin_member() {
  if (open_.empty()) return;
  Open& open = open_.back();
  if (open.count % members_per_mark == 0) {
    if (open.count > 0) put(open.is_dict ? 'u' : 'e');
    put('(');
  }
  ++open.count;
}

void PickleWriter::begin_list() {
  begin_member();
  put(']');
  open_.push_back({false, 0});
}

void PickleWriter::begin_dict() {
  begin_member();
  put('}');
  open_.push_back({true, 0});
}

void PickleWriter::end() {
  if (open_.back().count > 0) put(open_.back().is_dict ? 'u' : 'e');
  open_.pop_back();
}

void PickleWriter::finish() { put('.'); }

void PickleWriter::number(std::uint64_t value) {
  begin_member();
  if (value <= 0xFF) {
    put('K');
    put(value, 1);
  } else if (value <= 0xFFFF) {
    put('M');
    put(value, 2);
  } else if (value <= INT32_MAX) {
    put('J');
    put(value, 4);
  } else {
    // A signed number of any length.
    std::size_t bytes = 4;
    while (bytes < 8 && value >> (8 * bytes) != 0) ++bytes;
    const bool has_high_bit = (value >> (8 * bytes - 1) & 1) != 0;
    put('\x8A');
    put(bytes + (has_high_bit ? 1 : 0), 1);
    put(value, bytes);
    if (has_high_bit) put('\0');
  }
}

void PickleWriter::boolean(bool value) {
  begin_member();
  put(value ? '\x88' : '\x89');
}

void PickleWriter::text(std::string_view value) {
  begin_member();
  const auto known = texts_.find(value);
  if (known != texts_.end()) return put_reference(known->second);
  const std::string valid = valid_utf8(value);
  put('X');
  put(valid.size(), 4);
  out_.write(valid);
  texts_.emplace(value, put_memo());
}

void PickleWriter::pair(std::uint64_t first, std::uint64_t second) {
  begin_member();
  // The numbers are members of the tuple, and not of what is open.
  std::vector<Open> none;
  std::swap(open_, none);
  number(first);
  number(second);
  std::swap(open_, none);
  put('\x86');
}

std::uint32_t PickleWriter::put_memo() {
  const std::uint32_t number = memo_count_++;
  put(number <= 0xFF ? 'q' : 'r');
  put(number, number <= 0xFF ? 1 : 4);
  return number;
}

std::uint32_t PickleWriter::keep() { return put_memo(); }

void PickleWriter::put_reference(std::uint32_t kept) {
  put(kept <= 0xFF ? 'h' : 'j');
  put(kept, kept <= 0xFF ? 1 : 4);
}

void PickleWriter::repeat(std::uint32_t kept) {
  begin_member();
  put_reference(kept);
}

}  // namespace tern::tools
