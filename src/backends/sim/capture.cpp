#include "backends/sim/capture.hpp"

namespace tern::sim {

std::optional<std::size_t> Capture::lane_of(std::size_t stream) const noexcept {
  const auto found = std::ranges::find(lanes_, stream, &Lane::stream);
  if (found == lanes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - lanes_.begin());
}

void Capture::add_work(std::size_t lane, CallSite site, Tag tag,
                       std::function<Result<void>(const Submission&)> submit) {
  calls_.push_back({CapturedCall::Kind::work, lane, 0, site, tag, std::move(submit)});
  ++lanes_[lane].work_count;
}

std::size_t Capture::add_record(std::size_t lane, CallSite site) {
  Clock knows = lanes_[lane].knows;
  if (knows.size() <= lane) knows.resize(lane + 1);
  knows[lane] = lanes_[lane].work_count;
  records_.push_back(std::move(knows));
  calls_.push_back({CapturedCall::Kind::record, lane, records_.size() - 1, site, {}, {}});
  return records_.size() - 1;
}

void Capture::add_wait(std::size_t lane, std::size_t record, CallSite site) {
  Clock& knows = lanes_[lane].knows;
  const Clock& learned = records_[record];
  knows.resize(std::max(knows.size(), learned.size()));
  for (std::size_t i = 0; i < learned.size(); ++i) knows[i] = std::max(knows[i], learned[i]);
  calls_.push_back({CapturedCall::Kind::wait, lane, record, site, {}, {}});
}

void Capture::add_block(std::size_t lane, std::uint64_t generation, CallSite site, Tag tag,
                        std::function<Result<void>(const Submission&)> note) {
  open_blocks_.emplace(generation, calls_.size());
  calls_.push_back({CapturedCall::Kind::note, lane, 0, site, tag, std::move(note)});
}

bool Capture::end_block(std::size_t lane, std::uint64_t generation, CallSite site,
                        std::function<Result<void>(const Submission&)> note) {
  if (open_blocks_.erase(generation) == 0) return false;
  calls_.push_back({CapturedCall::Kind::note, lane, 0, site, {}, std::move(note)});
  return true;
}

std::optional<CapturedCall> Capture::take_block(std::uint64_t generation) {
  const auto found = open_blocks_.find(generation);
  if (found == open_blocks_.end()) return std::nullopt;
  // The place of the call stays, because the numbers of the others must not change.
  const CapturedCall begun = std::exchange(calls_[found->second], CapturedCall());
  calls_[found->second].kind = CapturedCall::Kind::note;
  open_blocks_.erase(found);
  return begun;
}

std::vector<CapturedCall> Capture::take_blocks() {
  std::vector<std::pair<std::size_t, std::uint64_t>> open;
  for (const auto& [generation, number] : open_blocks_) open.emplace_back(number, generation);
  std::ranges::sort(open);
  std::vector<CapturedCall> begun;
  for (const auto& [number, generation] : open) begun.push_back(*take_block(generation));
  return begun;
}

std::size_t Capture::join(std::size_t stream) {
  lanes_.push_back({stream, 0, {}});
  return lanes_.size() - 1;
}

bool Capture::is_joined() const noexcept {
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    if (at(lanes_.front().knows, lane) < lanes_[lane].work_count) return false;
  }
  return true;
}

CapturedWork Capture::take() noexcept {
  return {std::move(calls_), lanes_.size(), records_.size()};
}

std::shared_ptr<Capture> Captures::find(std::size_t stream) const noexcept {
  const auto found = std::ranges::find_if(
      open_, [&](const auto& capture) { return capture->lane_of(stream).has_value(); });
  return found == open_.end() ? nullptr : *found;
}

void Captures::end(Capture& capture) noexcept {
  capture.end();
  std::erase_if(open_, [&](const auto& open) { return open.get() == &capture; });
}

}  // namespace tern::sim
