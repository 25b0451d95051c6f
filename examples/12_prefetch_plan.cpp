// Managed memory: one pointer for host and device, whose pages move to whoever touches them, unless
// somebody says where they should be. A plan brings them ahead of their use.

#include <algorithm>
#include <cstdio>
#include <tern/backends/sim.hpp>
#include <tern/coherence/managed_buffer.hpp>
#include <tern/coherence/prefetch_plan.hpp>
#include <tern/device/stream.hpp>

namespace {

/// Doubles the weights and clears the result, on the device. Gives how many bytes had to move
/// while the work ran.
std::size_t step(const tern::Device& device, bool has_plan) {
  const tern::Stream stream(device);
  tern::ManagedBuffer<float> weights(device, {1 << 20}, {.tag = "weights"});
  tern::ManagedBuffer<float> result(device, {1 << 20}, {.tag = "result"});
  std::ranges::fill(weights.discard_host(), 1.0f);
  std::ranges::fill(result.discard_host(), 0.0f);

  if (has_plan) {
    tern::PrefetchPlan plan;
    plan.add(weights, device.place()).add(result, device.place());
    plan.execute(stream);  // returns at once; the stream moves the pages
    stream.synchronize();
  }
  const std::size_t before = tern::sim::migrated_bytes(device);
  {
    const auto w = weights.rw_device(stream);
    const auto r = result.discard_device(stream);
    stream.fill(w.data(), w.size(), 2.0f);
    stream.fill(r.data(), r.size(), 3.0f);
  }
  stream.synchronize();
  const std::size_t moved = tern::sim::migrated_bytes(device) - before;
  const bool is_right = weights.read_host()[5] == 2.0f && result.read_host()[5] == 3.0f;
  return is_right ? moved : 0;
}

}  // namespace

int main() {
  const tern::Device device = tern::sim::open({.seed = 7});
  const std::size_t faults = step(device, false), planned = step(device, true);
  std::printf("moved while the work ran: %zu bytes without a plan, %zu with one\n", faults,
              planned);

  tern::ManagedBuffer<int> table(device, {4096}, {.tag = "table"});
  const tern::Hints hints = table.hints();
  const auto policy = tern::MigrationPolicy::prefer_host().accessed_by(device.place());
  const tern::HintUndo undo = hints.apply(policy);
  std::printf("applied:  %s\n", policy.text().c_str());
  std::printf("in force: prefers %s\n", hints.query().preferred->text().c_str());
  undo.restore();
  std::printf("undone:   %s\n", hints.query().preferred ? "no" : "prefers nothing");

  tern::PrefetchPlan plan;
  plan.add(table, device.place(), tern::HintRange{0, 4096}).add(table, tern::Place::host());
  std::printf("%s\n", plan.text().c_str());
  const auto wrong = plan.try_add(table.buffer(), device.place(), tern::HintRange{16000, 1000});
  if (wrong) return 1;
  std::printf("refused:  %s\n", wrong.failure().text().c_str());
  return faults > 0 && planned == 0 ? 0 : 1;
}
