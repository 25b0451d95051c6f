// Places and byte ranges as arguments and results.
//
// Python names a place by a text: 'host', 'host numa 1', 'host numa current' or 'device 3', as
// Place::text() returns it, or by a Device or the spec of one.

#pragma once

#include <optional>

#include "support.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/place.hpp"

namespace tern::python {

/// Returns the place that a Device, the text of a place, or the spec of a device means.
[[nodiscard]] Place place_of_object(nb::handle object);
[[nodiscard]] nb::object object_of_place(const std::optional<Place>& place);

/// Returns the range that None, a HintRange or a tuple (offset_bytes, bytes) means. None means the
/// whole buffer.
[[nodiscard]] std::optional<HintRange> range_of_object(nb::handle object);

/// Returns a number that must not be negative. Raises ValueError for a negative one, TypeError for
/// other objects, and OverflowError above 2^64.
[[nodiscard]] std::size_t size_of_object(nb::handle object, const char* what);

}  // namespace tern::python
