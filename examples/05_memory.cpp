// Memory from a pool under a budget, and the three refusals everybody meets: more than the budget
// allows, more than there is, and a block that is freed twice.

#include <cstdio>
#include <memory>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/budget_resource.hpp>
#include <tern/memory/owned_block.hpp>
#include <tern/memory/pool_resource.hpp>

int main() {
  const tern::Device device = tern::open_device("sim?memory=64MiB");
  const tern::Stream stream(device);
  const auto pool = std::make_shared<tern::PoolResource>(device);
  const tern::BudgetHandle ingest =
      tern::Budget::make("ingest", tern::BudgetLimit::bytes(16 * tern::mib));
  const auto memory = std::make_shared<tern::BudgetResource>(pool, ingest);

  // A block frees itself, in the order of its stream.
  tern::OwnedBlock batch(memory, {.bytes = 12 * tern::mib, .stream = stream, .tag = "batch"});
  stream.fill(static_cast<std::byte*>(batch.address()), batch.bytes(), std::byte{0});

  const tern::Result<tern::Block> too_much =
      memory->try_allocate({.bytes = 8 * tern::mib, .stream = stream, .tag = "batch"});
  if (too_much) return 1;
  std::printf("budget: %s\n", too_much.failure().text().c_str());

  const tern::Result<tern::Block> none_left =
      pool->try_allocate({.bytes = 60 * tern::mib, .stream = stream});
  if (none_left) return 1;
  std::printf("memory: %s\n", none_left.failure().text().c_str());

  const tern::Block block = pool->allocate({.bytes = 4096, .stream = stream});
  pool->try_deallocate(block, stream).value();
  const tern::Result<void> twice = pool->try_deallocate(block, stream);
  if (twice) return 1;
  std::printf("freed:  %s\n", twice.failure().text().c_str());

  const tern::PoolStatistics now = pool->pool_statistics();
  std::printf("The pool holds %s, %s of it in use.\n", tern::format_bytes(now.held_bytes).c_str(),
              tern::format_bytes(now.live_bytes).c_str());
}
