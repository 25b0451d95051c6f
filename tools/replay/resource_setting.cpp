#include "tools/replay/resource_setting.hpp"

#include <fmt/format.h>

#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern::tools {
namespace {

constexpr const char* accepts =
    "pool, async or driver. Pool settings follow after colons, such as pool:limit=8GiB:reuse. They "
    "are pages, segments, reuse, independence, thread_caches, limit=SIZE, initial=SIZE and "
    "trim=SIZE";

Failure refuse(std::string_view text) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' is not a valid resource. Accepted: {accepts}.")
      .with("name", "resource")
      .with("accepts", accepts)
      .with("value", text);
}

bool set_word(ResourceSetting& setting, std::string_view word) {
  PoolOptions& pool = setting.pool;
  if (word == "pages" || word == "segments") {
    pool.backing = word == "pages" ? PoolBacking::pages : PoolBacking::segments;
  } else if (word == "reuse" || word == "independence") {
    pool.preference = word == "reuse" ? PoolPreference::reuse : PoolPreference::independence;
  } else if (word == "thread_caches") {
    pool.thread_caches = true;
  } else {
    return false;
  }
  return true;
}

bool set_size(ResourceSetting& setting, std::string_view key, std::string_view value) {
  const Result<std::uint64_t> bytes = try_parse_bytes(value);
  if (!bytes || *bytes > max_request_bytes) return false;
  // Of a pool, 0 means no limit, which is the default.
  if (key == "limit" && *bytes > 0) {
    setting.pool.limit_bytes = *bytes;
  } else if (key == "initial") {
    setting.pool.initial_bytes = *bytes;
  } else if (key == "trim") {
    setting.trim_bytes = *bytes;
  } else {
    return false;
  }
  return true;
}

bool parse(std::string_view text, ResourceSetting& setting) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (kind == "async" || kind == "driver") {
    setting.kind = kind == "async" ? ResourceSetting::Kind::async : ResourceSetting::Kind::driver;
    return colon == text.npos;
  }
  if (kind != "pool") return false;
  for (std::string_view rest = colon == text.npos ? std::string_view() : text.substr(colon);
       !rest.empty();) {
    rest.remove_prefix(1);
    const std::string_view word = rest.substr(0, rest.find(':'));
    const std::size_t equals = word.find('=');
    const bool is_set = equals == word.npos
                            ? set_word(setting, word)
                            : set_size(setting, word.substr(0, equals), word.substr(equals + 1));
    if (!is_set) return false;
    rest.remove_prefix(word.size());
  }
  return true;
}

}  // namespace

std::string exact_bytes(std::size_t bytes) {
  constexpr std::pair<std::size_t, const char*> units[] = {
      {gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}};
  for (const auto& [unit, name] : units) {
    if (bytes > 0 && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return fmt::format("{}", bytes);
}

std::string ResourceSetting::text() const {
  if (kind != Kind::pool) return kind == Kind::async ? "async" : "driver";
  std::string text = "pool";
  if (pool.backing != PoolBacking::automatic) {
    text += pool.backing == PoolBacking::pages ? ":pages" : ":segments";
  }
  if (pool.preference != PoolPreference::automatic) {
    text += pool.preference == PoolPreference::reuse ? ":reuse" : ":independence";
  }
  if (pool.thread_caches) text += ":thread_caches";
  if (pool.limit_bytes > 0) text += ":limit=" + exact_bytes(pool.limit_bytes);
  if (pool.initial_bytes > 0) text += ":initial=" + exact_bytes(pool.initial_bytes);
  if (trim_bytes) text += ":trim=" + exact_bytes(*trim_bytes);
  return text;
}

std::string resource_setting_help() {
  return "Resources:\n"
         "  pool             the pool of Tern; settings follow after colons:\n"
         "    :limit=SIZE      hold at most this much memory\n"
         "    :initial=SIZE    allocate this much memory when the pool is created\n"
         "    :trim=SIZE       after each pass, return memory until this much is held\n"
         "    :pages           hold pages and remap them (default if the device supports it)\n"
         "    :segments        hold contiguous segments\n"
         "    :reuse           reuse memory of other streams before growing\n"
         "    :independence    grow before reusing memory of other streams\n"
         "    :thread_caches   cache blocks of up to 16 MiB per stream from the start\n"
         "  async            the driver's stream-ordered allocator, such as cuMemAllocAsync\n"
         "  driver           one driver call per request and per free, such as cuMemAlloc";
}

Result<std::vector<ResourceSetting>> try_parse_resource_settings(std::string_view text) {
  std::vector<ResourceSetting> settings;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    ResourceSetting setting;
    if (!parse(part, setting)) return refuse(part);
    settings.push_back(setting);
    if (comma == rest.npos) return settings;
    rest.remove_prefix(comma + 1);
  }
}

ResourceHandle make_resource(const Device& device, const ResourceSetting& setting) {
  switch (setting.kind) {
    case ResourceSetting::Kind::async:
      return std::make_shared<AsyncResource>(device);
    case ResourceSetting::Kind::driver:
      return std::make_shared<DirectResource>(device);
    case ResourceSetting::Kind::pool:
      break;
  }
  return std::make_shared<PoolResource>(device, setting.pool);
}

}  // namespace tern::tools
