#include "places.hpp"

#include <charconv>
#include <string>
#include <string_view>

#include "tern/backends/catalog.hpp"

namespace tern::python {
namespace {

/// Returns the number after a prefix, such as 3 of "device 3".
std::optional<std::uint32_t> number_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return {};
  text.remove_prefix(prefix.size());
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

}  // namespace

Place place_of_object(nb::handle object) {
  if (nb::isinstance<Device>(object)) return nb::cast<const Device&>(object).place();
  if (!nb::isinstance<nb::str>(object)) {
    raise(Failure(ErrorCode::type_mismatch,
                  "'{actual}' is not a place. Pass 'host', a Device, or the spec of a device.")
              .with("actual", repr_of(object)),
          here());
  }
  const std::string kept = escaped_utf8_of(object);
  const std::string_view text = kept;
  if (text == "host") return Place::host();
  if (text == "host numa current") return Place::host_numa_current();
  if (const auto node = number_after("host numa ", text)) return Place::host_numa(*node);
  if (const auto id = number_after("device ", text)) return Place::device(DeviceId{*id});
  return device_of_object(object).place();
}

nb::object object_of_place(const std::optional<Place>& place) {
  if (!place) return nb::none();
  const std::string text = place->text();
  return nb::str(text.data(), text.size());
}

std::size_t size_of_object(nb::handle object, const char* what) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    raise(Failure(ErrorCode::type_mismatch, "{what} is an integer, and not {actual}.")
              .with("what", what)
              .with("actual", repr_of(object)),
          here());
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow > 0) raise(Failure(ErrorCode::size_overflow).with("what", what), here());
  if (overflow < 0 || value < 0) {
    raise(Failure(ErrorCode::invalid_argument, "{name} is {value}, and must not be negative.")
              .with("name", what)
              .with_signed("value", overflow < 0 ? -1 : value),
          here());
  }
  return static_cast<std::size_t>(value);
}

std::optional<HintRange> range_of_object(nb::handle object) {
  if (object.is_none()) return {};
  if (nb::isinstance<HintRange>(object)) return nb::cast<HintRange>(object);
  if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != 2) {
    raise(
        Failure(
            ErrorCode::type_mismatch,
            "'{actual}' is not a range. Pass (offset_bytes, bytes), or None for the whole buffer.")
            .with("actual", repr_of(object)),
        here());
  }
  const nb::tuple pair = nb::borrow<nb::tuple>(object);
  return HintRange{size_of_object(pair[0], "offset_bytes"), size_of_object(pair[1], "bytes")};
}

}  // namespace tern::python
