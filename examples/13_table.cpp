// A table on a device, filtered by a kernel that writes there how many rows are left, and handed to
// another library, which reads that number where it is. The host learns of it when it asks, and not
// before: a gate shows that nothing came back on the way.

#include <algorithm>
#include <array>
#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/transfer_audit.hpp>
#include <tern/interop/arrow.hpp>
#include <tern/interop/dlpack.hpp>
#include <tern/launch/kernel.hpp>
#include <tern/table/table.hpp>
#include <vector>

namespace {

using tern::TypeKind, tern::View, tern::in, tern::out;
using Tensor = tern::abi::DLManagedTensorVersioned;

constexpr std::size_t count = 1000;

/// Somebody else's: it has a stream and a kernel of its own, and takes tensors.
double sum_in_another_library(const tern::Device& device, tern::StreamRef stream,
                              const std::array<Tensor*, 3>& tensors) {
  const auto kernel = tern::Kernel::from_function(
      device, "sum",
      [](View<const double> prices, View<const std::uint64_t> rows, View<double> total) {
        total[0] = 0;
        for (std::size_t i = 0; i < rows[0]; ++i) total[0] += prices[i];
      });
  std::array<tern::KernelArgument, 3> arguments;
  for (std::size_t i = 0; i < 3; ++i) {
    tern::abi::DLTensor& given = tensors[i]->dl_tensor;
    arguments[i] = {&given.data, sizeof given.data, given.data,
                    static_cast<std::size_t>(given.shape[0]) * sizeof(double),
                    i == 2 ? tern::Access::discard : tern::Access::read};
  }
  stream.launch(kernel.native(), tern::LaunchSize::for_elements(1), arguments);
  double total = 0;
  stream.copy(&total, tensors[2]->dl_tensor.data, sizeof total);  // its own result
  stream.synchronize();
  for (Tensor* tensor : tensors) tensor->deleter(tensor);
  return total;
}

int run(const char* spec) {
  const tern::Device device = tern::open_device(spec);
  const tern::Stream ours(device), theirs(device);
  std::vector<double> prices(count);
  std::vector<std::int32_t> volumes(count);
  for (std::size_t i = 0; i < count; ++i) {
    prices[i] = static_cast<double>(i % 100);
    volumes[i] = static_cast<std::int32_t>(i % 7);
  }
  const tern::Schema schema({{"price", TypeKind::f64, false}, {"volume", TypeKind::i32, false}});
  const auto trades =
      tern::Table::make(schema, {tern::Column::from<double>(device, prices),
                                 tern::Column::from<std::int32_t>(device, volumes)});

  // Room for all rows, and a count that the kernel writes beside them.
  const auto filter = tern::Kernel::from_function(
      device, "busy",
      [](View<const double> price, View<const std::int32_t> volume, View<double> price_out,
         View<std::int32_t> volume_out, View<std::uint64_t> rows) {
        rows[0] = 0;
        for (std::size_t i = 0; i < volume.size(); ++i) {
          if (volume[i] < 5) continue;
          price_out[rows[0]] = price[i];
          volume_out[rows[0]++] = volume[i];
        }
      });
  auto busy = tern::Table::allocate(device, schema, trades.capacity());
  double total = 0;
  {
    const tern::TransferGate gate;
    filter.launch(ours, tern::elements(1), in(trades.column(0)->values()),
                  in(trades.column(1)->values()), out(busy.column(0)->values()),
                  out(busy.column(1)->values()), out(busy.row_count()));
    if (busy.rows()) return 1;  // nobody knows yet
    // Their stream comes behind ours; the host waits for neither.
    const tern::DlpackOptions to = {.stream = theirs};
    const tern::Buffer sum(device, {1}, tern::DType::f64);
    total = sum_in_another_library(device, theirs,
                                   {tern::try_export_dlpack(busy.column(0)->values(), to).value(),
                                    tern::try_export_dlpack(busy.row_count(), to).value(),
                                    tern::try_export_dlpack(sum, to).value()});
    if (gate.small_reads().bytes != 0 || gate.violations().copies != 0) return 1;
  }
  std::printf("%-5s the other library's sum is %.0f, and Tern read nothing back\n", spec, total);

  // Whoever wants rows on the host asks, once; and Arrow has them as a table.
  std::printf("%-5s %llu rows of room for %zu\n", spec,
              static_cast<unsigned long long>(busy.rows_host()), busy.capacity());
  const tern::Table on_host = busy.copy_to(tern::open_device("host"));
  ArrowArray array;
  tern::export_arrow(on_host, &array);
  const auto* const given = static_cast<const double*>(array.children[0]->buffers[1]);
  double check = 0;
  for (std::int64_t i = 0; i < array.length; ++i) check += given[i];
  array.release(&array);
  std::printf("%-5s %.0f by way of Arrow\n", spec, check);
  // Nobody says when another library's work is done, so what it had is freed behind a wait for the
  // whole device.
  device.synchronize();
  const auto expected = std::count_if(volumes.begin(), volumes.end(), [](int v) { return v >= 5; });
  return check == total && busy.rows_host() == static_cast<std::uint64_t>(expected) ? 0 : 1;
}

}  // namespace

int main() { return run("sim") + run("host"); }
