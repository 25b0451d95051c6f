// A loop like that of a training program: weights and optimizer state stay, and each step needs a
// batch, activations and gradients. Record it, and look at its memory:
//
//   TERN_TRACE=training.trace 16_training [DEVICE]   such as host or cuda:0; sim if none is named
//   tern report training.trace -o training.html

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/array.hpp>
#include <tern/buffer/copy.hpp>
#include <tern/device/stream.hpp>
#include <tern/trace/recorder.hpp>
#include <vector>

namespace {

using Floats = tern::Array<float>;

constexpr std::size_t layers = 6, steps = 12, steps_per_checkpoint = 4, count = 64 * 1024;

class Training {
 public:
  explicit Training(const tern::Device& device)
      : device_(device),
        compute_(device, {.name = "compute"}),
        upload_(device, {.name = "upload"}) {
    for (std::size_t i = 0; i < layers; ++i) {
      weights_.push_back(Floats::uninitialized(device_, count, {.tag = "weights"}));
      weights_.back().fill(1, compute_);
      moments_.push_back(Floats::uninitialized(device_, 2 * count, {.tag = "optimizer"}));
      moments_.back().fill(0, compute_);
    }
  }

  void step(std::size_t number) {
    const tern::trace::Range range("step " + std::to_string(number));
    Floats batch = Floats::uninitialized(device_, count, {.stream = upload_, .tag = "batch"});
    batch.copy_from(rows_, upload_);
    std::vector<Floats> activations, gradients;
    for (std::size_t i = 0; i < layers; ++i) {
      activations.push_back(Floats::uninitialized(device_, count, {.tag = "activations"}));
      copy(activations.back(), i == 0 ? batch : activations[i - 1]);
    }
    while (!activations.empty()) {
      gradients.push_back(Floats::uninitialized(device_, count, {.tag = "gradients"}));
      copy(gradients.back(), activations.back());
      activations.pop_back();
      compute_.synchronize();
    }
    for (std::size_t i = 0; i < layers; ++i) copy(weights_[i], gradients[i]);
    if (number % steps_per_checkpoint == 0) write_checkpoint();
  }

  /// Returns an element of the model.
  [[nodiscard]] float element() const { return weights_.back().slice(count - 1, 1).to_vector()[0]; }

 private:
  void copy(const Floats& to, const Floats& from) const {
    tern::copy(to.buffer(), from.buffer(), compute_);
  }
  void write_checkpoint() {
    const tern::trace::Range range("checkpoint");
    for (const Floats& one : weights_) one.copy_to(checkpoint_, upload_);
    upload_.synchronize();
  }

  tern::Device device_;
  tern::Stream compute_, upload_;
  std::vector<Floats> weights_, moments_;
  std::vector<float> rows_ = std::vector<float>(count, 0.5F), checkpoint_ = rows_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto opened = tern::try_open_device(argc > 1 ? argv[1] : "sim");
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.failure().text().c_str());
    return 2;
  }
  Training training(*opened);
  for (std::size_t number = 1; number <= steps; ++number) training.step(number);
  std::printf("%zu steps on '%s', the weights are %g\n", steps, std::string(opened->spec()).c_str(),
              static_cast<double>(training.element()));
  return training.element() == 0.5F ? 0 : 1;
}
