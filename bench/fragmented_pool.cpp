#include "bench/fragmented_pool.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <unordered_set>

#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t page_bytes = 2 * mib, search_step = 64 * kib;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::string Load::text() const {
  return fmt::format("{}, {} stream{}", sizes == Sizes::uniform ? "uniform" : "log", streams,
                     streams == 1 ? "" : "s");
}

Fragmented::Fragmented(Resource& resource, const Stage& stage, const Load& load)
    : resource_(resource), stage_(stage), load_(load) {
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < load.steps; ++i) step();
  seconds_ = seconds_since(start);
  stage_.device.synchronize();
}

Fragmented::~Fragmented() {
  while (!live_.empty()) free_at(live_.size() - 1);
  static_cast<void>(stage_.device.try_synchronize());
}

double Fragmented::us_per_failure() const {
  return failures_ == 0 ? 0 : failure_seconds_ * 1e6 / static_cast<double>(failures_);
}

double Fragmented::ns_per_step() const { return seconds_ * 1e9 / static_cast<double>(load_.steps); }

std::size_t Fragmented::draw_bytes() {
  return load_.sizes == Sizes::uniform ? random_.between(1, 4 * mib)
                                       : random_.log_uniform(256, 64 * mib);
}

void Fragmented::step() {
  const std::size_t target = load_.cap_bytes / 10 * 9;
  if (wanted_bytes_ == 0) wanted_bytes_ = draw_bytes();
  if (live_bytes_ + rounded(wanted_bytes_) > target) return free_one();

  const std::size_t stream = random_.below(load_.streams);
  const Clock::time_point start = Clock::now();
  const Result<Block> block =
      resource_.try_allocate({.bytes = wanted_bytes_, .stream = stage_.streams[stream]});
  if (!block) {
    failure_seconds_ += seconds_since(start);
    ++failures_;
    return free_one();
  }
  live_.push_back({*block, wanted_bytes_, stream});
  live_bytes_ += rounded(wanted_bytes_);
  wanted_bytes_ = 0;
}

void Fragmented::free_one() {
  if (!live_.empty()) free_at(random_.below(live_.size()));
}

void Fragmented::free_at(std::size_t index) {
  const Live one = live_[index];
  static_cast<void>(resource_.try_deallocate(one.block, stage_.streams[one.stream]));
  live_bytes_ -= rounded(one.bytes);
  live_[index] = live_.back();
  live_.pop_back();
}

std::size_t Fragmented::free_page_bytes() const {
  std::unordered_set<std::uintptr_t> used;
  for (const Live& one : live_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(one.block.address);
    const std::uintptr_t last = begin + one.block.bytes - 1;
    for (std::uintptr_t page = begin / page_bytes; page <= last / page_bytes; ++page) {
      used.insert(page);
    }
  }
  const std::size_t used_bytes = used.size() * page_bytes;
  return used_bytes < load_.cap_bytes ? load_.cap_bytes - used_bytes : 0;
}

bool Fragmented::can_have(std::size_t bytes) {
  const StreamRef stream = stage_.streams[0];
  const Result<Block> block = resource_.try_allocate({.bytes = bytes, .stream = stream});
  if (block) resource_.try_deallocate(*block, stream).value();
  stage_.device.synchronize();
  return bool(block);
}

std::size_t Fragmented::largest_bytes() {
  stage_.device.synchronize();
  std::size_t granted = 0, refused = (load_.cap_bytes - live_bytes_) / search_step + 1;
  while (granted + 1 < refused) {
    const std::size_t middle = granted + (refused - granted) / 2;
    (can_have(middle * search_step) ? granted : refused) = middle;
  }
  return granted * search_step;
}

void Fragmented::free_half() {
  for (std::size_t left = live_.size() / 2; left > 0; --left) free_one();
  stage_.device.synchronize();
}

void Fragmented::stir() {
  const std::size_t index = random_.below(live_.size());
  Live& one = live_[index];
  const StreamRef stream = stage_.streams[one.stream];
  resource_.try_deallocate(one.block, stream).value();
  one.block = resource_.try_allocate({.bytes = one.bytes, .stream = stream}).value();
}

}  // namespace tern::bench
