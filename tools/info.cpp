// `tern info`: prints the machine as Tern sees it.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

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
  return json;
}

std::string text(const Json& json, const char* key) { return json.at(key).get<std::string>(); }
std::string size(const Json& json, const char* key) {
  return format_bytes(json.at(key).get<std::uint64_t>());
}

void print_device(const Json& device) {
  if (device.contains("error")) {
    fmt::print("  {}  {}\n", text(device, "spec"), red(text(device, "error")));
    return;
  }
  fmt::print("  {}  {}, {} processors, {}\n", bold(text(device, "spec")), text(device, "name"),
             device.at("processors").get<int>(), text(device, "driver"));
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
  if (!can.empty()) fmt::print("    can        {}\n", can);
  if (!cannot.empty()) fmt::print("    cannot     {}\n", dim(cannot));
}

void print(const Json& json) {
  fmt::print("{}  {}\n\n", bold("Tern " + text(json, "version")), dim(text(json, "compiler")));
  for (const Json& backend : json.at("backends")) {
    if (!backend.at("available").get<bool>()) {
      fmt::print("{}  {}\n", dim(text(backend, "name")), text(backend, "reason"));
      continue;
    }
    fmt::print("{}", green(text(backend, "name")));
    for (const Json& option : backend.at("options")) {
      fmt::print("  {}", dim(option.get<std::string>()));
    }
    fmt::print("\n");
    for (const Json& device : backend.at("devices")) print_device(device);
    for (const Json& device : backend.at("unusable_devices")) {
      fmt::print("  {}\n", dim("not used: " + device.get<std::string>()));
    }
  }
  fmt::print("\n{}\n", bold("Configuration"));
  if (json.contains("configuration_error")) {
    fmt::print("  {}\n", red(text(json, "configuration_error")));
    return;
  }
  for (const Json& variable : json.at("configuration")) {
    const std::string value = text(variable, "value");
    fmt::print("  {:<20} {:<20} {}\n", text(variable, "name"), value.empty() ? "unset" : value,
               dim(text(variable, "purpose")));
  }
  for (const Json& name : json.at("unknown_variables")) {
    fmt::print("  {:<20} {}\n", name.get<std::string>(),
               red("not a variable of Tern; check the spelling"));
  }
}

}  // namespace

int run_info(const InfoOptions& options) {
  const Json json = collect();
  if (options.json) {
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(json);
  }
  return json.contains("configuration_error") ? 2 : 0;
}

}  // namespace tern::tools
