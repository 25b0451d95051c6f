// `tern info`: prints the machine as Tern sees it, in about ten lines, or in full with --all.

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/version.hpp"
#include "tern/detail/core/config.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* compiler =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "gcc " __VERSION__;
#endif

Json describe(const Device& device) {
  const DeviceInfo& info = device.info();
  Json json = {{"spec", info.spec},
               {"name", info.name},
               {"driver", info.driver},
               {"processors", info.processors},
               {"alignment_bytes", info.alignment},
               {"max_alignment_bytes", info.max_alignment},
               {"page_bytes", info.page_bytes}};
  if (const Result<MemoryInfo> memory = device.try_memory(); memory) {
    json["total_bytes"] = memory->total_bytes;
    json["free_bytes"] = memory->free_bytes;
  }
  for (const Capability capability : all_capabilities) {
    json["capabilities"][std::string(name(capability))] = device.can(capability);
  }
  return json;
}

/// One structure for both outputs, so that they cannot differ.
Json collect() {
  Json json;
  json["version"] = TERN_VERSION;
  json["compiler"] = compiler;
  json["backends"] = Json::array();
  for (const BackendListing& backend : list_backends()) {
    Json entry = {{"name", backend.name}, {"available", backend.is_available}};
    if (!backend.is_available) entry["reason"] = backend.reason;
    entry["options"] = backend.options;
    entry["devices"] = Json::array();
    for (const std::string& spec : backend.devices) {
      const Result<Device> device = try_open_device(spec);
      entry["devices"].push_back(device ? describe(*device)
                                        : Json{{"spec", spec}, {"error", device.failure().text()}});
    }
    entry["unusable_devices"] = backend.unusable_devices;
    json["backends"].push_back(std::move(entry));
  }
  const Result<const Config*> config = try_config();
  if (!config) {
    json["configuration_error"] = config.failure().text();
    return json;
  }
  for (const ConfigVariable& variable : config_variables()) {
    json["configuration"].push_back({{"name", variable.name},
                                     {"value", effective_value(**config, variable.name)},
                                     {"accepts", variable.accepts},
                                     {"purpose", variable.purpose}});
  }
  json["unknown_variables"] = (*config)->unknown_names;
  if (const Result<Device> best = try_open_best_device(); best) {
    json["best_device"] = best->info().spec;
  }
  return json;
}

std::string text(const Json& json, const char* key) { return json.at(key).get<std::string>(); }
std::string size(const Json& json, const char* key) {
  return format_bytes(json.at(key).get<std::uint64_t>());
}

/// The text in lines that fit the terminal, for a place behind `indent` columns.
std::string fitted(std::string_view text, std::size_t indent) {
  return wrapped(text, indent, terminal_columns());
}

void print_full_device(const Json& device) {
  const std::size_t indent = text(device, "spec").size() + 4;
  if (device.contains("error")) {
    fmt::print("  {}  {}\n", text(device, "spec"), red(fitted(text(device, "error"), indent)));
    return;
  }
  fmt::print("  {}  {}\n", bold(text(device, "spec")),
             fitted(fmt::format("{}, {} processors, {}", text(device, "name"),
                                device.at("processors").get<int>(), text(device, "driver")),
                    indent));
  if (device.contains("total_bytes")) {
    fmt::print("    memory     {} free of {}\n", size(device, "free_bytes"),
               size(device, "total_bytes"));
  }
  fmt::print("    alignment  {} at least, {} at most\n", size(device, "alignment_bytes"),
             size(device, "max_alignment_bytes"));
  std::string can, cannot;
  for (const auto& [capability, has] : device.at("capabilities").items()) {
    std::string& list = has.get<bool>() ? can : cannot;
    list += (list.empty() ? "" : ", ") + capability;
  }
  constexpr std::size_t list_indent = 15;
  if (!can.empty()) fmt::print("    can        {}\n", fitted(can, list_indent));
  if (!cannot.empty()) fmt::print("    cannot     {}\n", dim(fitted(cannot, list_indent)));
}

void print_full(const Json& json) {
  fmt::print("{}  {}\n\n", bold("Tern " + text(json, "version")), dim(text(json, "compiler")));
  for (const Json& backend : json.at("backends")) {
    const std::size_t indent = text(backend, "name").size() + 2;
    if (!backend.at("available").get<bool>()) {
      fmt::print("{}  {}\n", dim(text(backend, "name")), fitted(text(backend, "reason"), indent));
      continue;
    }
    std::string options;
    for (const Json& option : backend.at("options")) {
      options += (options.empty() ? "" : " ") + option.get<std::string>();
    }
    fmt::print("{}  {}\n", green(text(backend, "name")), dim(fitted(options, indent)));
    for (const Json& device : backend.at("devices")) print_full_device(device);
    for (const Json& device : backend.at("unusable_devices")) {
      fmt::print("  {}\n", dim(fitted("not used: " + device.get<std::string>(), 2)));
    }
  }
  fmt::print("\n{}\n", bold("Configuration"));
  if (json.contains("configuration_error")) {
    fmt::print("  {}\n", red(fitted(text(json, "configuration_error"), 2)));
    return;
  }
  for (const Json& variable : json.at("configuration")) {
    const std::string value = text(variable, "value");
    const std::string columns =
        fmt::format("  {:<20} {:<20} ", text(variable, "name"), value.empty() ? "unset" : value);
    const std::string meaning =
        fmt::format("{}. Accepts {}.", text(variable, "purpose"), text(variable, "accepts"));
    constexpr std::size_t indent = 44;
    if (terminal_columns() >= 80 && columns.size() <= indent) {
      fmt::print("{}{}\n", columns, dim(fitted(meaning, indent)));
    } else {
      fmt::print("{}\n    {}\n", columns.substr(0, columns.find_last_not_of(' ') + 1),
                 dim(fitted(meaning, 4)));
    }
  }
  for (const Json& name : json.at("unknown_variables")) {
    fmt::print("  {:<20} {}\n", name.get<std::string>(),
               red("not a variable of Tern; check the spelling"));
  }
}

/// Prints two columns: the label, and the text in lines that fit the terminal.
void print_row(std::string_view label, std::string_view text, bool is_absent = false) {
  constexpr std::size_t indent = 14;
  const std::string lines = wrapped(text, indent, terminal_columns());
  const std::string padded = fmt::format("{:<{}}", label, indent - 2);
  fmt::print("  {}{}\n", is_absent ? dim(padded) : bold(padded), is_absent ? dim(lines) : lines);
}

std::string in_short(const Json& device) {
  if (device.contains("error")) return text(device, "error");
  const int processors = device.at("processors").get<int>();
  std::string line = fmt::format("{}, {} {}", text(device, "name"), processors,
                                 processors == 1 ? "processor" : "processors");
  if (device.contains("total_bytes")) {
    line += fmt::format(", {} free of {}", size(device, "free_bytes"), size(device, "total_bytes"));
  }
  return line;
}

/// One row per device; devices that differ only by their number share one.
void print_devices_in_short(const Json& devices) {
  for (std::size_t first = 0; first < devices.size();) {
    const std::string line = in_short(devices[first]);
    std::size_t last = first;
    while (last + 1 < devices.size() && in_short(devices[last + 1]) == line) ++last;
    const std::string spec = text(devices[first], "spec");
    print_row(first == last ? spec : fmt::format("{}..{}", spec, last), line);
    first = last + 1;
  }
}

void print_short(const Json& json) {
  fmt::print("{}\n\n", bold("Tern " + text(json, "version")));
  for (const Json& backend : json.at("backends")) {
    if (!backend.at("available").get<bool>()) {
      print_row(text(backend, "name"), text(backend, "reason"), true);
      continue;
    }
    print_devices_in_short(backend.at("devices"));
    for (const Json& device : backend.at("unusable_devices")) {
      print_row(text(backend, "name"), "not used: " + device.get<std::string>(), true);
    }
  }
  fmt::print("\n");
  if (json.contains("configuration_error")) {
    print_row("settings", text(json, "configuration_error"));
    return;
  }
  if (json.contains("best_device")) {
    print_row("default", fmt::format("open_best_device() opens {}", text(json, "best_device")));
  }
  std::string settings;
  for (const Json& variable : json.at("configuration")) {
    const std::string variable_name = text(variable, "name");
    if (std::getenv(variable_name.c_str()) == nullptr) continue;
    settings +=
        fmt::format("{}{}={}", settings.empty() ? "" : " ", variable_name, text(variable, "value"));
  }
  print_row("settings", settings.empty() ? "no TERN_ variable is set" : settings);
  for (const Json& name : json.at("unknown_variables")) {
    print_row("", fmt::format("{} is not a variable of Tern; check the spelling",
                              name.get<std::string>()));
  }
  print_row("next",
            "`tern info --all` for details, `tern doctor` for limits, `tern tour` for a start");
}

}  // namespace

int run_info(const InfoOptions& options) {
  const Json json = collect();
  if (options.json) {
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    options.all ? print_full(json) : print_short(json);
  }
  return json.contains("configuration_error") ? 2 : 0;
}

}  // namespace tern::tools
