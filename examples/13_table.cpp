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

using tern::TypeKind;
using Tensor = tern::abi::DLManagedTensorVersioned;

constexpr std::size_t count = 1000;

/// Copies the rows with a volume of 5 or more, and writes how many there are.
TERN_KERNEL(busy_rows,
            (in<double> price, in<int32_t> volume, part<double> price_out, part<int32_t> volume_out,
             out<uint64_t> rows),
            {
              if (index.x == 0) {
                uint64_t kept = 0;
                for (size_t i = 0; i < size(volume); ++i) {
                  if (volume[i] < 5) continue;
                  price_out[kept] = price[i];
                  volume_out[kept] = volume[i];
                  ++kept;
                }
                rows[0] = kept;
              }
            })

TERN_KERNEL(sum_of_rows, (in<double> prices, in<uint64_t> rows, out<double> total), {
  if (index.x == 0) {
    double sum = 0;
    for (uint64_t i = 0; i < rows[0]; ++i) sum += prices[i];
    total[0] = sum;
  }
})

/// Another library, which has a stream and a kernel, and takes tensors.
double sum_in_another_library(const tern::Device& device, tern::StreamRef stream,
                              const std::array<Tensor*, 3>& tensors) {
  const auto kernel = tern::Kernel::from_text(device, sum_of_rows);
  // An array is its address and its size.
  std::array<tern::KernelArgument, 6> arguments;
  std::array<std::uint64_t, 3> sizes;
  for (std::size_t i = 0; i < 3; ++i) {
    tern::abi::DLTensor& given = tensors[i]->dl_tensor;
    sizes[i] = static_cast<std::uint64_t>(given.shape[0]);
    arguments[2 * i] = {&given.data, sizeof given.data, given.data, sizes[i] * sizeof(double),
                        i == 2 ? tern::Access::discard : tern::Access::read};
    arguments[2 * i + 1] = {&sizes[i], sizeof sizes[i]};
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
  const auto filter = tern::Kernel::from_text(device, busy_rows);
  auto busy = tern::Table::allocate(device, schema, trades.capacity());
  double total = 0;
  {
    const tern::TransferGate gate;
    filter.launch(ours, tern::elements(1), trades.column(0)->values(), trades.column(1)->values(),
                  busy.column(0)->values(), busy.column(1)->values(), busy.row_count());
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

int main(int argc, char** argv) {
  if (argc > 1) return run(argv[1]);
  return run("sim") + run("host");
}
