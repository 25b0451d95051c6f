// Tern's importers and exporters as plain C functions, which the Python tests call through ctypes.
// Handles are tables and tensors on the heap. A null handle is a failure; its text can be queried.

#include <cstdint>
#include <string>

#include "tern/backends/catalog.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"

namespace {

using tern::Result, tern::Table, tern::StridedBuffer;

std::string& last_error() {
  static std::string text;
  return text;
}

const tern::Device& host() {
  static const tern::Device device = tern::open_device("host");
  return device;
}

template <class T>
T* keep(Result<T> made) {
  if (made) return new T(*std::move(made));
  last_error() = made.failure().text();
  return nullptr;
}

int done(const Result<void>& result) {
  if (result) return 0;
  last_error() = result.failure().text();
  return -1;
}

}  // namespace

#define TERN_PEER extern "C" __attribute__((visibility("default")))

TERN_PEER const char* tern_peer_error();
TERN_PEER std::uint64_t tern_peer_exports();
TERN_PEER Table* tern_peer_import_array(ArrowArray* array, ArrowSchema* schema);
TERN_PEER Table* tern_peer_import_device_array(ArrowDeviceArray* array, ArrowSchema* schema);
TERN_PEER Table* tern_peer_import_stream(ArrowArrayStream* stream);
TERN_PEER int tern_peer_export_array(const Table* table, ArrowArray* array, ArrowSchema* schema);
TERN_PEER int tern_peer_export_device_array(const Table* table, ArrowDeviceArray* array,
                                            ArrowSchema* schema);
TERN_PEER int tern_peer_export_stream(const Table* table, ArrowArrayStream* stream);
TERN_PEER Table* tern_peer_copy(const Table* table);
TERN_PEER Table* tern_peer_slice(const Table* table, std::uint64_t first, std::uint64_t count);
TERN_PEER std::uint64_t tern_peer_values(const Table* table, std::uint64_t column);
TERN_PEER void tern_peer_drop_table(Table* table);
TERN_PEER StridedBuffer* tern_peer_import_tensor(void* managed, int has_version);
TERN_PEER void* tern_peer_export_tensor(const StridedBuffer* tensor, int has_version);
TERN_PEER std::uint64_t tern_peer_tensor_address(const StridedBuffer* tensor);
TERN_PEER void tern_peer_drop_tensor(StridedBuffer* tensor);

const char* tern_peer_error() { return last_error().c_str(); }
std::uint64_t tern_peer_exports() { return tern::exported_memory().count; }

Table* tern_peer_import_array(ArrowArray* array, ArrowSchema* schema) {
  return keep(tern::try_import_arrow(host(), array, schema, {.checks_text = true}));
}
Table* tern_peer_import_device_array(ArrowDeviceArray* array, ArrowSchema* schema) {
  return keep(tern::try_import_arrow(host(), array, schema, {.checks_text = true}));
}
Table* tern_peer_import_stream(ArrowArrayStream* stream) {
  return keep(tern::try_import_arrow(host(), stream, {.checks_text = true}));
}
int tern_peer_export_array(const Table* table, ArrowArray* array, ArrowSchema* schema) {
  if (done(tern::try_export_arrow(*table, array)) != 0) return -1;
  return done(tern::try_export_arrow_schema(table->schema(), schema));
}
int tern_peer_export_device_array(const Table* table, ArrowDeviceArray* array,
                                  ArrowSchema* schema) {
  if (done(tern::try_export_arrow(*table, array)) != 0) return -1;
  return done(tern::try_export_arrow_schema(table->schema(), schema));
}
int tern_peer_export_stream(const Table* table, ArrowArrayStream* stream) {
  const Table chunks[] = {*table, *table};
  return done(tern::try_export_arrow(chunks, stream));
}
Table* tern_peer_copy(const Table* table) { return keep(table->try_copy_to(host())); }
Table* tern_peer_slice(const Table* table, std::uint64_t first, std::uint64_t count) {
  return keep(table->try_slice(first, count));
}
std::uint64_t tern_peer_values(const Table* table, std::uint64_t column) {
  return table->columns()[column].parts().values.address();
}
void tern_peer_drop_table(Table* table) { delete table; }

StridedBuffer* tern_peer_import_tensor(void* managed, int has_version) {
  return keep(has_version != 0
                  ? tern::try_import_dlpack(
                        host(), static_cast<tern::abi::DLManagedTensorVersioned*>(managed))
                  : tern::try_import_dlpack(host(),
                                            static_cast<tern::abi::DLManagedTensor*>(managed),
                                            {.legacy_is_writable = true}));
}
void* tern_peer_export_tensor(const StridedBuffer* tensor, int has_version) {
  if (has_version != 0) {
    const auto made = tern::try_export_dlpack(
        *tensor, {.is_read_only = tensor->hull().storage()->is_read_only()});
    if (made) return *made;
    last_error() = made.failure().text();
    return nullptr;
  }
  const auto made = tern::try_export_dlpack_legacy(*tensor);
  if (made) return *made;
  last_error() = made.failure().text();
  return nullptr;
}
std::uint64_t tern_peer_tensor_address(const StridedBuffer* tensor) {
  return tensor->element_count() == 0 ? 0 : tensor->hull().address() + tensor->origin_bytes();
}
void tern_peer_drop_tensor(StridedBuffer* tensor) { delete tensor; }
