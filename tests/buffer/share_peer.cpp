// The other process of the tests of shared arrays.
//
//   share_peer pong DEVICE HANDLE ROUNDS   opens the array, and answers each round
//   share_peer hold DEVICE HANDLE          acquires the array, says so, and keeps the turn
//   share_peer serve DEVICE                makes an array, prints its handle, and plays one round
//                                          whenever it reads a line
//
// Exits with 0 if everything was as expected, else prints why and exits with 1.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/shared_array.hpp"

namespace {

using Array = tern::SharedArray<std::uint32_t>;

/// So that a test that fails does not leave a process behind.
constexpr std::chrono::minutes patience(1);

void say(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

int pong(const tern::Device& device, const std::string& handle, std::uint32_t rounds) {
  Array array = Array::open(handle, device);
  const tern::Stream stream(device);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    array.acquire(patience);
    const std::vector<std::uint32_t> found = array.buffer().to_vector<std::uint32_t>();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == 2 * round + i) continue;
      say("round " + std::to_string(round) + ": element " + std::to_string(i) + " is " +
          std::to_string(found[i]));
      return 1;
    }
    std::vector<std::uint32_t> answer = found;
    for (std::uint32_t& element : answer) ++element;
    array.buffer().copy_from(std::span<const std::uint32_t>(answer), stream);
    array.publish(stream);
    // The copy reads `answer` until the stream has passed it.
    stream.synchronize();
  }
  return 0;
}

int hold(const tern::Device& device, const std::string& handle) {
  Array array = Array::open(handle, device);
  array.acquire(patience);
  say("acquired");
  return std::getchar() == EOF ? 0 : 1;
}

int serve(const tern::Device& device) {
  Array array = Array::make(device, 1000);
  const tern::Stream stream(device);
  say(array.handle());
  for (std::uint32_t round = 1; std::getchar() != EOF; ++round) {
    array.buffer().fill(round, stream);
    array.publish(stream);
    stream.synchronize();
    say("published");
    array.acquire(patience);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) try {
  const std::vector<std::string> arguments(words, words + count);
  const std::string mode = count > 1 ? arguments[1] : "";
  const tern::Device device = tern::open_device(count > 2 ? arguments[2] : "host");
  if (mode == "pong" && count == 5) {
    return pong(device, arguments[3], static_cast<std::uint32_t>(std::stoul(arguments[4])));
  }
  if (mode == "hold" && count == 4) return hold(device, arguments[3]);
  if (mode == "serve" && count == 3) return serve(device);
  say("usage: share_peer pong|hold|serve DEVICE ...");
  return 2;
} catch (const std::exception& error) {
  say(error.what());
  return 1;
}
