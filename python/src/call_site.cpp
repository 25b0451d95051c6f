// Call sites: the Python line of a call, as C++ reports show lines of C++.
//
// Reading file and function of a code object costs a microsecond, so the sites of recent calls are
// cached by code object and line.

#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "support.hpp"

namespace tern::python {
namespace {

/// Returns a copy of the text that is never freed. Equal texts share one copy.
const char* interned(std::string_view text) {
  static std::mutex mutex;
  static auto& texts = *new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return texts.emplace(text).first->c_str();
}

std::string attribute(PyObject* object, const char* name) {
  const nb::object value = nb::steal(PyObject_GetAttrString(object, name));
  if (!value.is_valid()) {
    PyErr_Clear();
    return {};
  }
  return nb::isinstance<nb::str>(value) ? nb::cast<std::string>(value) : std::string();
}

bool is_of_package(std::string_view file) {
  static constinit std::atomic<std::string*> kept = nullptr;
  const std::string& folder = made_once(kept, [] {
    const nb::object package = nb::steal(PyImport_ImportModule("ternmem"));
    if (!package.is_valid()) {
      PyErr_Clear();
      return std::string("/ternmem/");
    }
    std::string init = attribute(package.ptr(), "__file__");
    return init.substr(0, init.rfind('/') + 1);
  });
  // The tour is a program, and its reports name its own lines.
  return file.starts_with(folder) && file != folder + "tour.py";
}

struct Cached {
  PyObject* code = nullptr;  // counted, so that its address is not reused
  int line = 0;
  bool is_of_package = false;
  CallSite site;
};

/// Returns the site of the code and line. Holds the interpreter lock, or with a free-threaded
/// interpreter is used by one thread.
const Cached& cached(PyObject* code, int line) {
  static constexpr std::size_t entries = 256;
  thread_local std::array<Cached, entries> cache;
  const std::size_t hash =
      (reinterpret_cast<std::uintptr_t>(code) >> 4) + static_cast<std::size_t>(line) * 31;
  Cached& found = cache[hash % entries];
  if (found.code == code && found.line == line) return found;
  const std::string file = attribute(code, "co_filename");
  Py_XDECREF(found.code);
  Py_INCREF(code);
  found = {
      code,
      line,
      is_of_package(file),
      {interned(file), interned(attribute(code, "co_name")), static_cast<std::uint32_t>(line)}};
  return found;
}

}  // namespace

CallSite here() noexcept try {
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  CallSite site;
  while (frame.is_valid() && !frame.is_none()) {
    auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const Cached& found = cached(code.ptr(), PyFrame_GetLineNumber(raw));
    site = found.site;
    if (!found.is_of_package) return site;
    frame = nb::steal(PyObject_GetAttrString(frame.ptr(), "f_back"));
    if (!frame.is_valid()) PyErr_Clear();
  }
  return site;
} catch (...) {
  return {};
}

Tag tag_of(const std::optional<std::string>& text) { return text ? Tag(*text) : Tag(); }

}  // namespace tern::python
