// A loop like that of a training program. Weights and optimizer state live until the end. Each step
// allocates and frees a batch, activations and gradients. One stream computes, and another one
// uploads batches.
//
//   training DEVICE [FACTOR]   such as sim, host, opencl:0 or cuda:0; the factor multiplies sizes
//
// The last line of the output is JSON with the counters of the library at the end of the recording.
// At this time, the model is live.

#include <string>
#include <tern/core/bytes.hpp>
#include <tern/trace/recorder.hpp>
#include <vector>

#include "counted.hpp"

namespace {

using tern::Array;

constexpr std::size_t layers = 6, steps = 32, steps_per_checkpoint = 4;

class Model {
 public:
  Model(const counted::Setting& setting, const counted::CountedPool& pool,
        const counted::CountedPool* pinned)
      : count_(64 * 1024 * setting.factor),
        pool_(pool),
        add_scaled_(setting.device),
        compute_(setting.device, {.name = "compute"}),
        upload_(setting.device, {.name = "upload"}),
        host_batch_(pinned, setting.device, count_, "batch on the host"),
        checkpoint_(pinned, setting.device, count_, "checkpoint"),
        loss_(pinned, setting.device, 1, "loss") {
    const tern::trace::Range range("make the model");
    host_batch_.fill(1);
    for (std::size_t i = 0; i < layers; ++i) {
      weights_.push_back(make(count_, "weights", upload_));
      host_batch_.upload(weights_.back(), upload_);
      moments_.push_back(make(2 * count_, "optimizer", compute_));
    }
  }

  void step(std::size_t number) {
    const tern::trace::Range range("step " + std::to_string(number));
    Array<float> batch = make(count_, "batch", upload_);
    host_batch_.upload(batch, upload_);
    std::vector<Array<float>> activations, gradients;
    {
      const tern::trace::Range forward("forward");
      const Array<float>* input = &batch;
      activations.reserve(layers);
      for (std::size_t i = 0; i < layers; ++i) {
        activations.push_back(make(count_, "activations", compute_));
        add_scaled_(compute_, activations.back(), *input, 0.5F);
        add_scaled_(compute_, activations.back(), weights_[i], 0.25F);
        input = &activations.back();
      }
      read_loss(*input);
    }
    {
      const tern::trace::Range backward("backward");
      while (!activations.empty()) {
        gradients.push_back(make(count_, "gradients", compute_));
        add_scaled_(compute_, gradients.back(), activations.back(), 0.1F);
        activations.pop_back();
      }
      read_loss(gradients.back());
    }
    const tern::trace::Range update("update");
    for (std::size_t i = 0; i < layers; ++i) {
      const Array<float>& gradient = gradients[layers - 1 - i];
      Array<float> first = moments_[i].slice(0, count_), second = moments_[i].slice(count_, count_);
      add_scaled_(compute_, first, gradient, 0.1F);
      add_scaled_(compute_, second, first, 0.01F);
      add_scaled_(compute_, weights_[i], second, -0.001F);
    }
    compute_.synchronize();
  }
  void write_checkpoint() {
    const tern::trace::Range range("checkpoint");
    for (const Array<float>& one : weights_) checkpoint_.download(one, compute_);
    compute_.synchronize();
  }

 private:
  /// Training programs log the loss of each step, so the host waits for the device in each step.
  void read_loss(const Array<float>& from) {
    loss_.download(from.slice(0, 1), compute_);
    compute_.synchronize();
  }
  [[nodiscard]] Array<float> make(std::size_t count, tern::Tag tag, tern::StreamRef stream,
                                  tern::CallSite site = tern::CallSite::here()) const {
    return Array<float>::uninitialized(
        pool_.memory(), count,
        {.contents = tern::Contents::zero, .stream = stream, .tag = tag, .site = site});
  }

  const std::size_t count_;
  const counted::CountedPool& pool_;
  const counted::AddScaled add_scaled_;
  const tern::Stream compute_, upload_;
  counted::HostArray host_batch_, checkpoint_, loss_;
  std::vector<Array<float>> weights_, moments_;
};

}  // namespace

int main(int argc, char** argv) {
  const counted::Setting setting = counted::Setting::of(argc, argv);
  const counted::DevicePools pools(setting.device);
  Model model(setting, pools.memory, pools.pinned());
  for (std::size_t i = 0; i < steps; ++i) {
    model.step(i);
    if ((i + 1) % steps_per_checkpoint == 0) model.write_checkpoint();
  }
  setting.device.synchronize();
  tern::trace::stop();
  counted::print_counters(pools.all());
}
