// How the library records events: tests is_recording(), then calls record().
//
//   if (trace::is_recording()) trace::record(EventKind::free, {.block = 7, .bytes = 4096});
//
// is_recording() is one load. record() writes 64 bytes into a slab of the calling thread. Code that
// cannot afford the load, such as a hit in a pool, derives from RecordingListener and keeps a flag
// that it reads anyway.

#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "trace/event_clock.hpp"
#include "trace/memory_event.hpp"

namespace tern::trace {

class Recording;

/// The recording of this process, or null.
inline constinit std::atomic<Recording*> current_recording = nullptr;

[[nodiscard]] inline bool is_recording() noexcept {
  return current_recording.load(std::memory_order_relaxed) != nullptr;
}

/// What an event refers to by name. The texts are copied when an event first names them. A number
/// must always come with the same text.
struct Named {
  std::uint32_t number = 0;  // 0: none
  std::string_view text = {};
  std::uint8_t detail = 0;
};

/// Caches the number of a text in the latest recording. For a text that many events name, such as
/// the path of a budget: the recording looks up the number only once. Threads may share a cache.
class TextCache {
 private:
  friend class Recording;
  std::atomic<std::uint64_t> known_ = 0;  // upper bits: number of the recording; lower: of the text
};

/// The fields of an event. Fields that the kind does not use stay 0.
struct EventFacts {
  std::uint64_t stream = 0;
  std::uint64_t block = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t extra = 0;
  CallSite site = {};
  Tag tag = {};
  Named device = {};
  Named resource = {};
  /// Stored in `extra`, if its number is not 0.
  Named kernel = {};
  /// Stored in `extra` as a definition, if not empty. Takes a lock, unless `text_cache` is given.
  std::string_view text = {};
  TextCache* text_cache = nullptr;
  std::uint8_t detail = 0;
  /// When it happened. 0: now.
  std::uint64_t time_ns = 0;
};

/// Records an event of this thread. Does nothing if nothing is recorded.
void record(EventKind kind, const EventFacts& facts) noexcept;

/// Returns a new number for an object that events name, such as a resource.
[[nodiscard]] std::uint32_t new_number() noexcept;

/// Starts what TERN_TRACE asks for, on the first call. Devices call it when they are opened.
void start_from_environment();

/// Writes the ring to the file that TERN_TRACE names, if there is one, because a request failed.
/// The pauses between two writes double each time, up to a minute, so that a program that lives
/// with failed requests is not slowed down.
void dump_after_failure() noexcept;

/// Is notified when recording starts and stops.
class RecordingListener {
 public:
  RecordingListener(const RecordingListener&) = delete;
  RecordingListener& operator=(const RecordingListener&) = delete;
  /// Called by the thread that starts or stops the recording, with a lock held that all listeners
  /// share. Must not start or stop a recording.
  virtual void recording_changed(bool is_on) noexcept = 0;

 protected:
  RecordingListener() noexcept = default;
  virtual ~RecordingListener() = default;
  /// Calls recording_changed() with the present state, and from then on with every change. Call it
  /// at the end of the constructor of the class that implements recording_changed(), and
  /// stop_listening() at the beginning of its destructor.
  void start_listening() noexcept;
  void stop_listening() noexcept;

 private:
  friend class Recording;
  RecordingListener* next_ = nullptr;
  RecordingListener* previous_ = nullptr;
};

}  // namespace tern::trace
