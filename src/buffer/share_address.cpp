#include "buffer/share_address.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <optional>

namespace tern::share {
namespace {

constexpr std::string_view scheme = "tern-share-1";

/// Returns the text up to the next colon, and removes both from `text`.
std::string_view take_field(std::string_view& text) noexcept {
  const std::size_t end = text.find(':');
  const std::string_view field = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return field;
}

template <class Number>
[[nodiscard]] bool read_number(std::string_view text, int base, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

[[nodiscard]] bool read_secret(std::string_view text, Secret& secret) noexcept {
  if (text.size() != 2 * secret.size()) return false;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    if (!read_number(text.substr(2 * i, 2), 16, secret[i])) return false;
  }
  return true;
}

[[nodiscard]] std::optional<Address> parsed(std::string_view text) noexcept {
  Address address;
  if (take_field(text) != scheme) return std::nullopt;
  if (!read_number(take_field(text), 10, address.pid)) return std::nullopt;
  if (!read_number(take_field(text), 16, address.socket)) return std::nullopt;
  if (!read_number(take_field(text), 10, address.id)) return std::nullopt;
  if (!read_secret(text, address.secret)) return std::nullopt;
  return address;
}

}  // namespace

std::string print(const Address& address) {
  std::string text =
      fmt::format("{}:{}:{:016x}:{}:", scheme, address.pid, address.socket, address.id);
  for (const std::uint8_t byte : address.secret) text += fmt::format("{:02x}", byte);
  return text;
}

Result<Address> try_parse(std::string_view text, CallSite site) noexcept {
  if (const std::optional<Address> address = parsed(text); address && address->pid != 0) {
    return *address;
  }
  return Failure(ErrorCode::bad_format,
                 "'{value}' is not the handle of a shared array. Pass the text that handle() "
                 "returned in the process that made the array.",
                 site)
      .with("what", "the handle of a shared array")
      .with("field", "handle")
      .with("value", text);
}

Result<void> try_fill_random(void* to, std::size_t bytes) noexcept {
  ssize_t got = -1;
  do {
    got = getrandom(to, bytes, 0);
  } while (got < 0 && errno == EINTR);
  // The system never returns fewer than 256 bytes if more are wanted.
  if (got == static_cast<ssize_t>(bytes)) return {};
  return Failure(ErrorCode::driver,
                 "{call} failed with error {code}. Shared arrays need random numbers of the "
                 "system for their secrets: allow the system call.")
      .with("call", "getrandom")
      .with("name", "system error")
      .with("code", static_cast<std::uint64_t>(errno));
}

}  // namespace tern::share
