#include "c/failures.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/tag.hpp"
#include "tern/core/version.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/budget_resource.hpp"

namespace tern::c {
namespace {

/// Of the last failure of this thread. Not a std::string: a failure must not need host memory.
thread_local std::array<char, 1024> last_message = {};
thread_local tern_status last_status = TERN_OK;

tern_status keep(tern_status status, std::string_view message) noexcept {
  const std::size_t length = message.copy(last_message.data(), last_message.size() - 1);
  last_message[length] = '\0';
  return last_status = status;
}

}  // namespace

tern_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::out_of_memory:
      return TERN_OUT_OF_MEMORY;
    case ErrorCode::out_of_budget:
      return TERN_OUT_OF_BUDGET;
    case ErrorCode::use_after_free:
      return TERN_NOT_LIVE;
    case ErrorCode::invalid_argument:
    case ErrorCode::size_overflow:
    case ErrorCode::size_mismatch:
    case ErrorCode::misaligned:
    case ErrorCode::out_of_bounds:
      return TERN_INVALID_ARGUMENT;
    case ErrorCode::invalid_device:
    case ErrorCode::device_mismatch:
      return TERN_INVALID_DEVICE;
    case ErrorCode::stream_misuse:
      return TERN_STREAM_MISUSE;
    case ErrorCode::unsupported:
      return TERN_UNSUPPORTED;
    case ErrorCode::after_fork:
      return TERN_AFTER_FORK;
    case ErrorCode::device_lost:
      return TERN_DEVICE_LOST;
    default:
      return TERN_FAILED;
  }
}

tern_status fail(const Failure& failure) noexcept {
  failure.render(last_message.data(), last_message.size());
  return last_status = status_of(failure.code());
}

tern_status fail_request(const Failure& failure, const Resource& resource) noexcept {
  const tern_status status = fail(failure);
  const auto* const limited = dynamic_cast<const BudgetResource*>(&resource);
  if (status != TERN_OUT_OF_BUDGET || limited == nullptr) return status;
  const Budget* level = limited->budget().get();
  while (level != nullptr && level->path() != failure.string("layer")) {
    level = level->parent().get();
  }
  if (level == nullptr) return status;
  try {
    std::vector<std::pair<Tag, std::size_t>> uses = level->used_by_tag();
    std::sort(uses.begin(), uses.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text(last_message.data());
    constexpr std::size_t max_named = 4;
    for (std::size_t i = 0; i < std::min(uses.size(), max_named); ++i) {
      text += i == 0 ? " In use: " : ", ";
      text += uses[i].first == Tag() ? "without a tag" : uses[i].first.name();
      text += ' ' + format_bytes(uses[i].second);
    }
    if (!uses.empty()) text += '.';
    return keep(status, text);
  } catch (const std::bad_alloc&) {
    return status;
  }
}

tern_status fail_null(const char* name) noexcept {
  return fail(Failure(ErrorCode::invalid_argument, "{name} is null. Pass a valid pointer.")
                  .with("name", name));
}

tern_status fail_struct(const char* name, std::size_t bytes) noexcept {
  return fail(Failure(ErrorCode::invalid_argument,
                      "struct_bytes of {name} is {bytes}. Set it to the size of the structure "
                      "before the call.")
                  .with("name", name)
                  .with("bytes", bytes));
}

tern_status fail_with_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(error.failure());
  } catch (const std::bad_alloc&) {
    return keep(TERN_OUT_OF_MEMORY, "the host has no memory for this call. Free host memory.");
  } catch (const std::exception& error) {
    return keep(TERN_FAILED, error.what());
  } catch (...) {
    return keep(TERN_FAILED, "an unknown exception.");
  }
}

}  // namespace tern::c

uint32_t tern_abi_version(void) { return TERN_ABI_VERSION; }
const char* tern_version(void) { return TERN_VERSION; }
const char* tern_last_error(void) { return tern::c::last_message.data(); }
tern_status tern_last_status(void) { return tern::c::last_status; }

const char* tern_status_name(tern_status status) {
  constexpr std::array names = {"TERN_OK",
                                "TERN_OUT_OF_MEMORY",
                                "TERN_OUT_OF_BUDGET",
                                "TERN_NOT_LIVE",
                                "TERN_INVALID_ARGUMENT",
                                "TERN_INVALID_DEVICE",
                                "TERN_STREAM_MISUSE",
                                "TERN_UNSUPPORTED",
                                "TERN_AFTER_FORK",
                                "TERN_DEVICE_LOST",
                                "TERN_FAILED"};
  const auto index = static_cast<std::size_t>(status);
  return index < names.size() ? names[index] : "unknown status";
}
