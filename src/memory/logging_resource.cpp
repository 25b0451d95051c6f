#include "tern/memory/logging_resource.hpp"

#include <chrono>
#include <utility>

#include "memory/block_table.hpp"

namespace tern {
namespace {

std::atomic<std::uint64_t> last_order = 0;
std::atomic<std::uint32_t> last_thread = 0;
thread_local std::uint32_t own_number = 0;
/// True while this thread is inside a sink.
thread_local bool is_writing = false;

std::uint64_t next_order() noexcept { return last_order.fetch_add(1) + 1; }

LogSinkHandle checked(LogSinkHandle sink) {
  if (sink) return sink;
  raise(Failure(ErrorCode::invalid_argument,
                "a logging resource needs a sink, and the pointer is null. Use a RingSink, "
                "make_file_sink() or make_callback_sink().")
            .with("name", "sink"));
}

}  // namespace

LoggingResource::LoggingResource(ResourceHandle upstream, LogSinkHandle sink)
    : WrappingResource("logging", std::move(upstream)), sink_(checked(std::move(sink))) {}

void LoggingResource::write(LogRecord& record, const Failure* failure) noexcept {
  if (record.order == 0) record.order = next_order();
  if (own_number == 0) own_number = last_thread.fetch_add(1) + 1;
  record.thread = own_number;
  record.device = device().id();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  record.time_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  if (failure != nullptr) {
    record.failure = failure->code();
    record.message_bytes = static_cast<std::uint16_t>(
        failure->render(record.message_text.data(), record.message_text.size()));
  }
  bool is_taken = false;
  if (!is_writing) {
    is_writing = true;
    try {
      is_taken = sink_->write(record);
    } catch (...) {
      // The logged call has already succeeded or failed, so an error of the sink must not change
      // its result.
    }
    is_writing = false;
  }
  if (!is_taken) dropped_.fetch_add(1, std::memory_order_relaxed);
}

Result<Block> LoggingResource::try_allocate(const Request& request) noexcept {
  const Result<Block> block = WrappingResource::try_allocate(request);
  LogRecord record;
  record.action = LogAction::allocate;
  record.stream = request.stream.id();
  record.tag = request.tag;
  record.site = request.site;
  record.bytes = block ? block->bytes : request.bytes;
  record.address = block ? block->address : nullptr;
  record.generation = block ? block->generation : Generation{};
  write(record, block ? nullptr : &block.failure());
  return block;
}

Result<void> LoggingResource::try_deallocate(const Block& block, StreamRef stream,
                                             const CallSite& site) noexcept {
  LogRecord record;
  record.action = LogAction::free;
  record.stream = stream.id();
  record.site = site;
  record.bytes = block.bytes;
  record.address = block.address;
  record.generation = block.generation;
  // Read the tag and take the number before the free: afterwards the facts are gone, and another
  // thread may already have the memory.
  if (const Result<BlockFacts> facts = try_find_block(block.generation)) record.tag = facts->tag;
  record.order = next_order();
  const Result<void> freed = WrappingResource::try_deallocate(block, stream, site);
  write(record, freed ? nullptr : &freed.failure());
  return freed;
}

std::size_t LoggingResource::trim(std::size_t keep_bytes) noexcept {
  LogRecord record;
  record.action = LogAction::trim;
  record.bytes = WrappingResource::trim(keep_bytes);
  write(record, nullptr);
  return record.bytes;
}

}  // namespace tern
