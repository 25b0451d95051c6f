#include "coherence/copy_stream.hpp"

#include <utility>

namespace tern {

Result<CopyStream> CopyStream::try_choose(const Device& device, Storage& storage, Access access,
                                          Storage* written) noexcept {
  Result<bool> is_ready = storage.uses().try_is_ready(access);
  if (is_ready && *is_ready && written != nullptr) {
    is_ready = written->uses().try_is_ready(Access::discard);
  }
  CopyStream chosen;
  if (is_ready && *is_ready) {
    const Result<StreamRef> stream = device.try_copy_stream();
    if (!stream) return stream.failure();
    chosen.stream = *stream;
    return chosen;
  }
  Result<Stream> stream = Stream::try_make(device, {.name = "unified"});
  if (!stream) return stream.failure();
  chosen.own = *std::move(stream);
  chosen.stream = chosen.own;
  return chosen;
}

bool is_lost(const Device& device) noexcept {
  const Result<StreamRef> stream = device.try_copy_stream();
  const Result<bool> is_idle = stream ? stream->try_is_idle() : Result<bool>(stream.failure());
  return !is_idle && is_idle.failure().code() == ErrorCode::device_lost;
}

}  // namespace tern
