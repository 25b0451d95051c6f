// Kernels and launches: code from source, from an image or from a Python function, launched with
// declared uses.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "collected.hpp"
#include "devices.hpp"
#include "growing.hpp"
#include "launches.hpp"
#include "managed.hpp"
#include "places.hpp"
#include "python_kernel.hpp"
#include "tern/launch/fence.hpp"
#include "tern/launch/kernel.hpp"
#include "unified.hpp"
#include "uses.hpp"

namespace {

/// A value of a dtype that is known at run time.
template <tern::DType dtype>
struct PackedValue {
  std::byte bytes[tern::size_bytes(dtype)];
};

}  // namespace

template <tern::DType dtype>
struct tern::DTypeOf<PackedValue<dtype>> {
  static constexpr DType value = dtype;
};

namespace tern::python {
namespace {

const char* name_of(Access access) {
  switch (access) {
    case Access::read:
      return "in_";
    case Access::discard:
      return "out";
    case Access::read_write:
      return "inout";
  }
  return "";
}

bool is_memory(nb::handle object) {
  return nb::isinstance<Buffer>(object) || nb::isinstance<PyUnified>(object) ||
         nb::isinstance<PyManaged>(object);
}

/// Like above, with the types that use_of() turns into a Buffer.
bool is_any_memory(nb::handle object) {
  return is_memory(object) || nb::isinstance<PyArray>(object) ||
         nb::isinstance<PyGrowing>(object) || nb::isinstance<PyScalar>(object);
}

Use use_of(nb::object memory, Access access) {
  if (nb::isinstance<PyArray>(memory)) memory = nb::cast(nb::cast<const PyArray&>(memory).buffer());
  if (nb::isinstance<PyGrowing>(memory)) {
    memory = nb::cast(nb::cast<const PyGrowing&>(memory).buffer());
  }
  if (nb::isinstance<PyScalar>(memory)) {
    memory = nb::cast(nb::cast<const PyScalar&>(memory).buffer());
  }
  if (!is_memory(memory)) {
    raise(
        Failure(ErrorCode::type_mismatch,
                "{name}() takes a Buffer, an Array, a GrowingArray, a Scalar, a UnifiedBuffer or a "
                "ManagedBuffer, and not {actual}.")
            .with("name", name_of(access))
            .with("actual", repr_of(memory.type())),
        here());
  }
  return {std::move(memory), access};
}

/// A declared argument. The Use keeps the memory.
LaunchArgument argument_of(const Use& use) {
  if (nb::isinstance<PyUnified>(use.memory)) {
    const RawUnified& raw = nb::cast<const PyUnified&>(use.memory).raw();
    const ArgumentType type{static_cast<std::uint32_t>(size_bytes(raw.dtype())), raw.dtype()};
    return LaunchArgument::of_movable(raw.launch_memory(), raw.offset(), raw.size_bytes(),
                                      use.access, type);
  }
  if (nb::isinstance<PyManaged>(use.memory)) {
    return LaunchArgument::of_memory(nb::cast<const PyManaged&>(use.memory).buffer(), use.access);
  }
  return LaunchArgument::of_memory(nb::cast<const Buffer&>(use.memory), use.access);
}

Shape shape_of(const Use& use) {
  if (nb::isinstance<PyUnified>(use.memory))
    return nb::cast<const PyUnified&>(use.memory).raw().shape();
  if (nb::isinstance<PyManaged>(use.memory))
    return nb::cast<const PyManaged&>(use.memory).buffer().shape();
  return nb::cast<const Buffer&>(use.memory).shape();
}

DType dtype_of_use(const Use& use) {
  if (nb::isinstance<PyUnified>(use.memory))
    return nb::cast<const PyUnified&>(use.memory).raw().dtype();
  if (nb::isinstance<PyManaged>(use.memory))
    return nb::cast<const PyManaged&>(use.memory).buffer().dtype();
  return nb::cast<const Buffer&>(use.memory).dtype();
}

/// The memory of a use, without Python objects.
struct UsedMemory {
  RawUnified unified;
  StorageHandle storage;

  explicit UsedMemory(const Use& use) {
    if (nb::isinstance<PyUnified>(use.memory)) {
      unified = nb::cast<const PyUnified&>(use.memory).raw();
    } else if (nb::isinstance<PyManaged>(use.memory)) {
      storage = nb::cast<const PyManaged&>(use.memory).buffer().storage();
    } else {
      storage = nb::cast<const Buffer&>(use.memory).storage();
    }
  }
  /// The storage that a launch on the device has used.
  [[nodiscard]] StorageHandle storage_on(const Device& device) const {
    if (!unified) return storage;
    const StorageHandle there = unified.storage_of(device.place());
    return there ? there : unified.storage_of(Place::host());
  }
};

// --- Values

using ValueBytes = std::array<std::byte, 16>;

template <DType dtype>
LaunchArgument value_argument(const ValueBytes& bytes) {
  return LaunchArgument::of_value(*reinterpret_cast<const PackedValue<dtype>*>(bytes.data()));
}

LaunchArgument argument_of_value(DType dtype, const ValueBytes& bytes) {
  switch (dtype) {
#define TERN_DTYPE(enumerator, name, width)            \
  case DType::enumerator:                              \
    if constexpr (DType::enumerator != DType::void_)   \
      return value_argument<DType::enumerator>(bytes); \
    break;
    TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
  }
  raise(Failure(ErrorCode::type_mismatch, "a value of type void has no bytes."), here());
}

/// A Python number has no width, and a kernel takes bytes.
void read_value(nb::handle object, std::size_t index, DType& dtype, ValueBytes& bytes) {
  const nb::object generic = numpy().attr("generic");
  const int is_generic = PyObject_IsInstance(object.ptr(), generic.ptr());
  if (is_generic < 0) nb::raise_python_error();
  if (is_generic == 0) {
    raise(Failure(ErrorCode::type_mismatch,
                  "argument {index} is {actual}. Declare memory with in_(), out() or inout(), and "
                  "pass a value as a NumPy "
                  "scalar of the width that the kernel expects, such as numpy.float32(2).")
              .with("index", index)
              .with("actual", repr_of(object.type())),
          here());
  }
  dtype = dtype_of_object(object.attr("dtype"));
  const nb::object raw = object.attr("tobytes")();
  std::memcpy(bytes.data(), PyBytes_AsString(raw.ptr()), size_bytes(dtype));
}

/// Converts a number to the type that the kernel declares. An integer type must have the value: 3.5
/// and 300 do not fit int8.
void fill_value(nb::handle object, std::size_t index, DType dtype, ValueBytes& bytes) {
  const nb::object given = numpy().attr("asarray")(object);
  const std::string kind = nb::cast<std::string>(given.attr("dtype").attr("kind"));
  const bool is_number = nb::cast<std::size_t>(given.attr("ndim")) == 0 &&
                         (kind == "b" || kind == "i" || kind == "u" || kind == "f");
  const nb::object made = is_number ? converted(object, dtype) : given;
  const bool is_real = dtype == DType::f32 || dtype == DType::f64;
  if (!is_number || (!is_real && !made.equal(given))) {
    raise(Failure(ErrorCode::type_mismatch,
                  "argument {index} is {actual}, and the kernel takes a value of type {expected}.")
              .with("index", index)
              .with("expected", name(dtype))
              .with("actual", repr_of(object)),
          here());
  }
  const nb::object raw = made.attr("tobytes")();
  std::memcpy(bytes.data(), PyBytes_AsString(raw.ptr()), size_bytes(dtype));
}

// --- Sizes

std::uint32_t extent_of(nb::handle object) {
  const std::size_t value = size_of_object(object, "a size of the launch");
  if (value > 0xffffffffu)
    raise(Failure(ErrorCode::size_overflow).with("what", "a size of the launch"), here());
  return static_cast<std::uint32_t>(value);
}

void read_axes(nb::handle object, std::uint32_t (&axes)[3]) {
  if (PyIndex_Check(object.ptr()) != 0) {
    axes[0] = extent_of(object);
    return;
  }
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object)) {
    raise(Failure(ErrorCode::type_mismatch,
                  "a grid or block is an integer or a tuple of up to three, and not {actual}.")
              .with("actual", repr_of(object)),
          here());
  }
  const std::size_t count = nb::len(object);
  if (count == 0 || count > 3) {
    raise(Failure(ErrorCode::invalid_argument, "a grid or block has 1 to 3 axes, and not {value}.")
              .with("name", "axes")
              .with("value", count),
          here());
  }
  for (std::size_t i = 0; i < count; ++i) axes[i] = extent_of(object[i]);
}

LaunchSize launch_size_of(nb::handle grid, nb::handle block, nb::handle shared_bytes) {
  LaunchSize size;
  read_axes(grid, size.grid);
  read_axes(block, size.block);
  size.shared_bytes = extent_of(shared_bytes);
  return size;
}

LaunchExtent extent_of_object(nb::handle object) {
  if (object.is_none()) return elements();
  if (nb::isinstance<Elements>(object)) return nb::cast<Elements>(object);
  if (nb::isinstance<LaunchSize>(object)) return nb::cast<const LaunchSize&>(object);
  if (PyIndex_Check(object.ptr()) != 0)
    return elements(size_of_object(object, "the number of elements"));
  raise(Failure(ErrorCode::type_mismatch,
                "the size of a launch is an integer, elements(n), LaunchSize(grid, block) or None, "
                "and not {actual}.")
            .with("actual", repr_of(object.type())),
        here());
}

bool is_empty(const LaunchExtent& extent) {
  // Any block size tells whether there is a block at all.
  const Result<LaunchSize> size = extent.try_size(LaunchSize::usual_block, {});
  if (!size) return false;
  for (int i = 0; i < 3; ++i) {
    if (size->grid[i] == 0 || size->block[i] == 0) return true;
  }
  return false;
}

// --- Kernels

class PyKernel {
 public:
  PyKernel(Kernel kernel, std::shared_ptr<PythonKernel> function)
      : kernel_(std::move(kernel)), function_(std::move(function)) {}

  PyKernel(PyKernel&&) = default;
  ~PyKernel() { release(kernel_); }

  [[nodiscard]] const Kernel& kernel() const noexcept { return kernel_; }
  [[nodiscard]] bool is_function() const noexcept { return function_ != nullptr; }

  Mark launch(nb::handle stream, nb::handle size, const nb::args& arguments) const {
    const CallSite site = here();
    const StreamArgument on(stream, kernel_.device());
    const LaunchExtent extent = extent_of_object(size);
    // An exception of an earlier launch is raised instead of launching. This launch raises later.
    check_launches();
    return is_function() ? launch_function(on.get(), extent, arguments, site)
                         : launch_native(on.get(), extent, arguments, site);
  }

 private:
  Mark launch_native(StreamRef stream, const LaunchExtent& extent, const nb::args& arguments,
                     CallSite site) const {
    std::vector<LaunchArgument> packed;
    std::vector<Use> uses;  // keep the memory
    std::vector<ValueBytes> values(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const nb::object one = nb::borrow(arguments[i]);
      if (nb::isinstance<Use>(one)) {
        packed.push_back(argument_of(nb::cast<const Use&>(one)));
        continue;
      }
      if (kernel_.declares_parameters() && is_any_memory(one)) {
        // The launch takes the access from the kernel.
        uses.push_back(use_of(one, Access::read));
        packed.push_back(argument_of(uses.back()).with_declared_access());
        continue;
      }
      if (const std::optional<DType> declared = kernel_.value_type(i)) {
        packed.push_back(argument_of_value(*declared, values[i]));
        fill_value(one, i, *declared, values[i]);
        continue;
      }
      if (kernel_.declares_parameters()) {
        raise(Failure(
                  ErrorCode::type_mismatch,
                  "argument {index} of kernel '{kernel}' is {actual}. Pass memory of a device for "
                  "an array, such as an Array, and no more arguments than the kernel has "
                  "parameters.")
                  .with("index", i)
                  .with("actual", repr_of(one.type()))
                  .with("kernel", kernel_.name()),
              site);
      }
      DType dtype = DType::void_;
      read_value(one, i, dtype, values[i]);
      packed.push_back(argument_of_value(dtype, values[i]));
    }
    return released([&] {
             return kernel_.try_launch_with({stream, site}, extent, packed);
           })
        .value();
  }

  Mark launch_function(StreamRef stream, const LaunchExtent& extent, const nb::args& arguments,
                       CallSite site) const {
    auto launch = std::make_unique<FunctionLaunch>();
    const std::shared_ptr<LaunchedMemory> memory = launch->memory;
    std::vector<LaunchArgument> packed;
    std::vector<UsedMemory> uses;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const nb::object one = nb::borrow(arguments[i]);
      FunctionArgument& made = launch->arguments.emplace_back();
      if (!nb::isinstance<Use>(one)) {
        if (is_any_memory(one)) {
          raise(Failure(ErrorCode::type_mismatch,
                        "argument {index} is memory whose use is not declared. Pass it as in_(), "
                        "out() or inout().")
                    .with("index", i)
                    .with("actual", repr_of(one.type())),
                here());
        }
        made.value = one;
        continue;
      }
      const Use& use = nb::cast<const Use&>(one);
      uses.emplace_back(use);
      packed.push_back(argument_of(use));
      made.is_memory = true;
      made.shape = shape_of(use);
      made.dtype = dtype_of_use(use);
      made.access = use.access;
    }
    launch->site = site;
    launch->device = kernel_.device().id();
    launch->is_on_host = kernel_.device().info().is_host;
    launch->stream = stream.id();
    const std::uint64_t number = function_->add(std::move(launch));
    packed.push_back(LaunchArgument::of_value(number));
    Result<Mark> launched = [&] {
      const LockReleased released;
      Result<Mark> made = kernel_.try_launch_with({stream, site}, extent, packed);
      // The function may have kept arrays over memory of a unified buffer, which can move later.
      if (made && memory.use_count() > 1) {
        std::vector<StorageHandle> storages;
        for (const UsedMemory& use : uses) storages.push_back(use.storage_on(kernel_.device()));
        const std::lock_guard lock(memory->mutex);
        memory->storages = std::move(storages);
      }
      return made;
    }();
    if (!launched || is_empty(extent)) function_->drop(number);
    return std::move(launched).value();
  }

  Kernel kernel_;
  std::shared_ptr<PythonKernel> function_;

  /// While a launch is pending, it shares the function.
  template <class Visit>
  friend void visit_objects(const PyKernel& self, Visit visit) {
    if (self.function_.use_count() == 1) visit(self.function_->function());
  }
};

PyKernel from_function(nb::handle device, nb::object function,
                       const std::optional<std::string>& name) {
  if (PyCallable_Check(function.ptr()) == 0) {
    raise(Failure(ErrorCode::type_mismatch, "function is {actual}, which is not callable.")
              .with("actual", repr_of(function)),
          here());
  }
  std::string text = name.value_or("");
  if (!name) {
    const nb::object own = nb::steal(PyObject_GetAttrString(function.ptr(), "__name__"));
    if (own.is_valid() && nb::isinstance<nb::str>(own)) text = nb::cast<std::string>(own);
    PyErr_Clear();
    if (text.empty()) text = "function";
  }
  const Device on = device_of_object(device);
  auto state = std::make_shared<PythonKernel>(std::move(function), text);
  const CallSite site = here();
  const KernelSource source{.entry = text, .body = PythonKernel::run, .context = state.get()};
  Kernel kernel = without_gil([&] { return Kernel::try_load(on, source, site); }).value();
  return {std::move(kernel), std::move(state)};
}

PyKernel from_source(nb::handle device, const std::string& text, const std::string& entry,
                     const std::string& options) {
  const Device on = device_of_object(device);
  const CallSite site = here();
  return {
      without_gil([&] { return Kernel::try_from_source(on, text, entry, options, site); }).value(),
      nullptr};
}

PyKernel from_text(nb::handle device, const std::string& text, const std::string& entry) {
  const Device on = device_of_object(device);
  const CallSite site = here();
  return {without_gil([&] {
            return Kernel::try_from_text(on, {.text = text, .entry = entry}, site);
          }).value(),
          nullptr};
}

PyKernel from_image(nb::handle device, nb::handle image, const std::string& entry) {
  const Device on = device_of_object(device);
  const CallSite site = here();
  std::string bytes;
  if (nb::isinstance<nb::bytes>(image)) {
    const nb::bytes held = nb::borrow<nb::bytes>(image);
    bytes.assign(held.c_str(), held.size());
  } else if (nb::isinstance<nb::str>(image)) {
    bytes = nb::cast<std::string>(image);
  } else {
    raise(
        Failure(ErrorCode::type_mismatch, "an image is bytes or the text of PTX, and not {actual}.")
            .with("actual", repr_of(image.type())),
        site);
  }
  return {without_gil([&] {
            return Kernel::try_from_image(on, std::string_view(bytes), entry, site);
          }).value(),
          nullptr};
}

nb::dict info_of(const PyKernel& self) {
  const KernelInfo& info = self.kernel().info();
  nb::dict made;
  made["parameter_count"] = info.parameter_count && !self.is_function()
                                ? nb::object(nb::int_(*info.parameter_count))
                                : nb::none();
  made["block_threads"] = info.block_threads;
  nb::list parameters;
  for (std::size_t i = 0; i < info.parameter_count.value_or(0) && i < KernelInfo::max_parameters &&
                          !self.is_function();
       ++i) {
    static constexpr const char* kinds[] = {"unknown", "value", "address"};
    nb::dict one;
    one["kind"] = kinds[static_cast<std::size_t>(info.parameters[i].kind)];
    one["bytes"] = info.parameters[i].value_bytes;
    parameters.append(one);
  }
  made["parameters"] = parameters;
  return made;
}

void add_uses(nb::module_& module) {
  nb::class_<Use>(module, "Use", nb::type_slots(Collected<Use>::slots),
                  "Memory together with what a kernel does to it. Made by :func:`in_`, :func:`out` "
                  "and :func:`inout`.")
      .def_prop_ro(
          "memory", [](const Use& self) { return self.memory; },
          "The Buffer, UnifiedBuffer or ManagedBuffer.")
      .def_prop_ro(
          "access", [](const Use& self) { return name_of(self.access); },
          "``'in_'``, ``'out'`` or ``'inout'``.")
      .def("__repr__", [](const Use& self) {
        return nb::str("{}({})").format(name_of(self.access), nb::repr(self.memory));
      });
  const auto add = [&](const char* name, Access access, const char* doc) {
    module.def(
        name, [access](nb::object memory) { return use_of(std::move(memory), access); },
        nb::arg("memory"), doc);
  };
  add("in_", Access::read,
      "Declare that a kernel reads the memory.\n\nParameters\n----------\nmemory : Buffer, Array, "
      "UnifiedBuffer or ManagedBuffer\n\nReturns\n-------\nUse");
  add("out", Access::discard,
      "Declare that a kernel overwrites all of the memory and reads none of "
      "it.\n\nParameters\n----------\nmemory : Buffer, Array, UnifiedBuffer or "
      "ManagedBuffer\n\nReturns\n-------\nUse");
  add("inout", Access::read_write,
      "Declare that a kernel reads and writes the memory, or writes a part of "
      "it.\n\nParameters\n----------\nmemory : Buffer, Array, UnifiedBuffer or "
      "ManagedBuffer\n\nReturns\n-------\nUse");
  nb::class_<Elements>(
      module, "Elements",
      "The size of a launch with one thread for each element. Made by :func:`elements`.")
      .def_ro("count", &Elements::count, "The number of elements.")
      .def_ro("block_threads", &Elements::block_threads,
              "Threads of a block; 0 for a number that suits the kernel.");
  module.def(
      "elements",
      [](nb::handle count, nb::handle block_threads) {
        return elements(size_of_object(count, "the number of elements"), extent_of(block_threads));
      },
      nb::arg("count"), nb::arg("block_threads") = 0,
      "Return the size of a launch with one thread for each element.\n\n"
      "The last block may have more threads than elements are left, so pass the count to the "
      "kernel too.\n\n"
      "Parameters\n----------\ncount : int\nblock_threads : int\n    0 uses a number that suits "
      "the kernel.\n\nReturns\n-------\nElements");
  nb::class_<LaunchSize>(
      module, "LaunchSize",
      "The grid and block sizes of a launch.\n\n"
      "Parameters\n----------\ngrid : int or tuple of int\n    Blocks along up to three axes.\n"
      "block : int or tuple of int\n    Threads of a block along up to three axes.\n"
      "shared_bytes : int\n    Dynamic shared memory of a block.")
      .def(
          "__init__",
          [](LaunchSize* self, nb::handle grid, nb::handle block, nb::handle shared_bytes) {
            new (self) LaunchSize(launch_size_of(grid, block, shared_bytes));
          },
          nb::arg("grid"), nb::arg("block"), nb::arg("shared_bytes") = 0)
      .def_prop_ro(
          "grid",
          [](const LaunchSize& self) {
            return nb::make_tuple(self.grid[0], self.grid[1], self.grid[2]);
          },
          "Blocks along each axis.")
      .def_prop_ro(
          "block",
          [](const LaunchSize& self) {
            return nb::make_tuple(self.block[0], self.block[1], self.block[2]);
          },
          "Threads of a block along each axis.")
      .def_ro("shared_bytes", &LaunchSize::shared_bytes, "Dynamic shared memory of a block.")
      .def("__repr__", [](const LaunchSize& self) {
        return nb::str("LaunchSize(grid=({}, {}, {}), block=({}, {}, {}), shared_bytes={})")
            .format(self.grid[0], self.grid[1], self.grid[2], self.block[0], self.block[1],
                    self.block[2], self.shared_bytes);
      });
}

}  // namespace

void add_kernels(nb::module_& module) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_launches));
  add_uses(module);
  nb::class_<PyKernel>(
      module, "Kernel", nb::type_slots(Collected<PyKernel>::slots),
      "Code that runs on a device. Each launch declares what the kernel does with its "
      "arguments.\n\n"
      "Make one with :meth:`from_text`, :meth:`from_function`, :meth:`from_source` or "
      ":meth:`from_image`.")
      .def_static(
          "from_function", &from_function, nb::arg("device"), nb::arg("function"),
          nb::arg("name") = nb::none(),
          "Make a kernel of a Python function, for the host and for simulated devices.\n\n"
          "Each launch calls the function once. The function gets a NumPy array for each declared "
          "memory, read-only for\n"
          ":func:`in_`, and all other arguments as they were passed. It must not call the "
          "device.\n\n"
          "If the function raises, the exception is raised by the next call of the launching "
          "thread that waits, or by a\n"
          "call of another thread that waits for the stream or reads memory of the device.\n\n"
          "Parameters\n----------\ndevice : Device or str\nfunction : callable\nname : str, "
          "optional\n    By default the name of the function.\n\n"
          "Returns\n-------\nKernel")
      .def_static(
          "from_source", &from_source, nb::arg("device"), nb::arg("text"), nb::arg("entry"),
          nb::arg("options") = "",
          "Compile a kernel: OpenCL C on OpenCL devices, CUDA C++ on CUDA devices.\n\n"
          "A simulated device checks the order of the launches, and runs no code of the text.\n\n"
          "Parameters\n----------\ndevice : Device or str\ntext : str\nentry : str\n    The name "
          "of the kernel in the text.\n"
          "options : str\n    Options of the device's compiler.\n\nReturns\n-------\nKernel")
      .def_static(
          "from_text", &from_text, nb::arg("device"), nb::arg("text"), nb::arg("entry") = "",
          "Load a portable kernel, on any device.\n\n"
          "The text declares what the kernel does with its parameters, so a launch takes memory "
          "without in_(), out()\n"
          "or inout(), and Python numbers. Host devices compile the text with the C++ compiler of "
          "the system, once: the\n"
          "result is kept on disk. Simulated devices interpret it, and report its mistakes with "
          "their lines.\n\n"
          "Parameters\n----------\ndevice : Device or str\ntext : str\n    One or more kernels.\n"
          "entry : str\n    The name of the kernel; may be left out if there is one.\n\n"
          "Returns\n-------\nKernel")
      .def_static("from_image", &from_image, nb::arg("device"), nb::arg("image"), nb::arg("entry"),
                  "Load a kernel from PTX or a cubin.\n\nParameters\n----------\ndevice : Device "
                  "or str\nimage : bytes or str\nentry : str\n\nReturns\n-------\nKernel")
      .def_prop_ro(
          "name", [](const PyKernel& self) { return std::string(self.kernel().name()); },
          "The name, for reports.")
      .def_prop_ro(
          "device", [](const PyKernel& self) { return self.kernel().device(); }, "The device.")
      .def_prop_ro("info", &info_of, "What the device knows about the parameters.")
      .def("launch", &PyKernel::launch, nb::arg("stream").none(), nb::arg("size").none(),
           nb::arg("arguments"),
           "Launch the kernel in stream order, after the work that its declared uses need.\n\n"
           "Parameters\n----------\nstream : Stream or None\n    None means the default stream of "
           "the device.\n"
           "size : int, Elements, LaunchSize or None\n    An integer means elements(n). None means "
           "one thread for each element, for portable\n    element kernels and reductions.\n"
           "*arguments\n    Memory as in_(x), out(x) or inout(x). Values of compiled kernels are "
           "NumPy scalars.\n\n"
           "Returns\n-------\nMark\n    The end of the launch.")
      .def("__repr__", [](const PyKernel& self) {
        return nb::str("Kernel('{}', device='{}')")
            .format(std::string(self.kernel().name()), std::string(self.kernel().device().spec()));
      });
  const auto add_fence = [&](const char* name, auto fence, const char* doc) {
    module.def(
        name,
        [fence](const PyStream& theirs, const PyStream& ours) {
          const CallSite site = here();
          without_gil([&] { return fence(theirs.get(), ours.get(), site); }).value();
        },
        nb::arg("theirs"), nb::arg("ours"), doc);
  };
  add_fence(
      "fence_to",
      [](StreamRef theirs, StreamRef ours, CallSite site) {
        return try_fence_to(theirs, ours, site);
      },
      "Make later work on ``theirs`` wait for all work on ``ours`` so far.");
  add_fence(
      "fence_from",
      [](StreamRef theirs, StreamRef ours, CallSite site) {
        return try_fence_from(theirs, ours, site);
      },
      "Make later work on ``ours`` wait for all work on ``theirs`` so far.");
}

}  // namespace tern::python
