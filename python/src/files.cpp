// Files as buffers: open_file() and flush().

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <optional>
#include <string>

#include "support.hpp"
#include "tern/buffer/file.hpp"

namespace tern::python {
namespace {

Buffer open(const std::filesystem::path& path, nb::handle dtype, nb::handle shape,
            std::size_t offset, bool map, bool writable, bool create,
            const std::optional<std::string>& tag) {
  FileOptions options;
  options.dtype = dtype.is_none() ? DType::u8 : dtype_of_object(dtype);
  options.offset_bytes = offset;
  options.map = map;
  options.writable = writable;
  options.create = create;
  options.tag = tag_of(tag);
  options.site = here();
  std::optional<Shape> extents;
  if (!shape.is_none()) {
    extents = shape_of_object(shape);
    options.bytes = extents->byte_count(options.dtype, options.site);
  }
  const Buffer file = without_gil([&] { return try_open_file(path.string(), options); }).value();
  return extents ? file.try_reshape(*extents, options.site).value() : file;
}

}  // namespace

void add_files(nb::module_& module) {
  module.def(
      "open_file", &open, nb::arg("path"), nb::arg("dtype") = nb::none(),
      nb::arg("shape") = nb::none(), nb::kw_only(), nb::arg("offset") = 0, nb::arg("map") = false,
      nb::arg("writable") = false, nb::arg("create") = false, nb::arg("tag") = nb::none(),
      "Open a file as a Buffer. Reads nothing.\n\n"
      "``weights.copy_from(file, stream)`` queues a copy and returns immediately: the file is read "
      "in the background, in the order of the stream. ``file.copy_from(weights, stream)`` writes. "
      "A failure is raised by the next synchronize() of the stream.\n\n"
      "Parameters\n----------\n"
      "path : str or os.PathLike\n"
      "dtype : dtype-like, default uint8\n"
      "shape : int or sequence of int, optional\n    By default one dimension, up to the end of "
      "the file.\n"
      "offset : int\n    The first byte.\n"
      "map : bool\n    Map the file now, for access by the host. By default the host reads the "
      "file at its first access.\n"
      "writable : bool\n    Open for reading and writing. By default writing raises "
      "ReadOnlyError.\n"
      "create : bool\n    Like ``writable``, and make the file, or extend it, if it is missing or "
      "shorter. Needs ``shape``.\n"
      "tag : str, optional\n    A name for reports.\n\n"
      "Returns\n-------\nBuffer");
  module.def(
      "flush",
      [](const Buffer& file) {
        const CallSite site = here();
        without_gil([&] { return try_flush(file, site); }).value();
      },
      nb::arg("file"),
      "Wait until all writes to a file from open_file() are on the disk. Raises FileError if a "
      "write failed.");
}

}  // namespace tern::python
