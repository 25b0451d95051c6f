// Three streams in a pipeline: one uploads chunks, one computes, one downloads the results. Each
// side has two buffers, so that the three streams can work at the same time.
//
//   pipeline DEVICE [FACTOR]   such as sim, host, opencl:0 or cuda:0; the factor multiplies sizes
//
// The last line of the output is JSON with the counters of the library at the end of the recording.
// The field "uploads" contains the bytes of the uploads, their nanoseconds according to timed
// events, and whether copies and kernels share processors.

#include <cstdio>
#include <string>
#include <tern/device/event.hpp>
#include <tern/trace/recorder.hpp>
#include <vector>

#include "counted.hpp"

namespace {

using tern::Array;

constexpr std::size_t chunks = 96, slots = 2;

class Pipeline {
 public:
  Pipeline(const counted::Setting& setting, const counted::CountedPool& pool,
           const counted::CountedPool* pinned)
      : device_(setting.device),
        count_(64 * 1024 * setting.factor),
        add_scaled_(device_),
        upload_(device_, {.name = "upload"}),
        compute_(device_, {.name = "compute"}),
        download_(device_, {.name = "download"}) {
    for (std::size_t i = 0; i < slots; ++i) {
      sources_.emplace_back(pinned, device_, count_, "source");
      sources_.back().fill(static_cast<float>(i + 1));
      results_.emplace_back(pinned, device_, count_, "result");
      inputs_.push_back(make(pool, "input", upload_));
      outputs_.push_back(make(pool, "output", compute_));
    }
    uploaded_.resize(slots);
    computed_.resize(slots);
    downloaded_.resize(slots);
    finished_.resize(2 * slots);
  }

  void run() {
    for (std::size_t i = 0; i < chunks; ++i) {
      const tern::trace::Range range("chunk " + std::to_string(i));
      // The device is at most two rounds behind, so that it always has work but few copies wait.
      tern::Mark& two_rounds_ago = finished_[i % finished_.size()];
      tern::Device::wait(two_rounds_ago);
      submit(i);
      two_rounds_ago = downloaded_[i % slots];
    }
    device_.synchronize();
  }
  /// Returns the nanoseconds of all uploads, or 0 if the device does not measure times.
  [[nodiscard]] std::uint64_t upload_ns() const {
    std::uint64_t sum = 0;
    for (const Timed& one : timed_) sum += one.end.elapsed_ns(one.start);
    return sum;
  }
  [[nodiscard]] std::uint64_t uploaded_bytes() const { return chunks * count_ * sizeof(float); }
  /// Returns whether every slot has the result of its source.
  [[nodiscard]] bool is_right() const {
    for (std::size_t i = 0; i < slots; ++i) {
      const float source = add_scaled_.kernel() ? static_cast<float>(i + 1) : 1.0F;
      if (results_[i].last(download_) != 2 * source) return false;
    }
    return true;
  }

 private:
  struct Timed {
    tern::Event start, end;
  };
  [[nodiscard]] Array<float> make(const counted::CountedPool& pool, tern::Tag tag,
                                  tern::StreamRef stream,
                                  tern::CallSite site = tern::CallSite::here()) const {
    return Array<float>::uninitialized(pool.memory(), count_,
                                       {.stream = stream, .tag = tag, .site = site});
  }
  void submit(std::size_t chunk) {
    const std::size_t slot = chunk % slots;
    // The wait comes before the first event, so that the events measure only the copy.
    upload_.wait(computed_[slot]);
    measure_upload(slot);
    uploaded_[slot] = upload_.mark();

    compute_.wait(uploaded_[slot]);
    compute_.wait(downloaded_[slot]);
    outputs_[slot].buffer().fill(0.0F, compute_);
    add_scaled_(compute_, outputs_[slot], inputs_[slot], 2);
    computed_[slot] = compute_.mark();

    download_.wait(computed_[slot]);
    results_[slot].download(outputs_[slot], download_);
    downloaded_[slot] = download_.mark();
  }
  void measure_upload(std::size_t slot) {
    if (!device_.can(tern::Capability::event_timing)) {
      return sources_[slot].upload(inputs_[slot], upload_);
    }
    Timed timed = {tern::Event::timed(device_), tern::Event::timed(device_)};
    upload_.record(timed.start);
    sources_[slot].upload(inputs_[slot], upload_);
    upload_.record(timed.end);
    timed_.push_back(std::move(timed));
  }

  const tern::Device device_;
  const std::size_t count_;
  const counted::AddScaled add_scaled_;
  const tern::Stream upload_, compute_, download_;
  std::vector<counted::HostArray> sources_, results_;
  std::vector<Array<float>> inputs_, outputs_;
  std::vector<tern::Mark> uploaded_, computed_, downloaded_;  // by slot
  std::vector<tern::Mark> finished_;                          // by chunk, the latest
  std::vector<Timed> timed_;
};

}  // namespace

int main(int argc, char** argv) {
  const counted::Setting setting = counted::Setting::of(argc, argv);
  const counted::DevicePools pools(setting.device);
  Pipeline pipeline(setting, pools.memory, pools.pinned());
  pipeline.run();
  tern::trace::stop();
  if (!pipeline.is_right()) {
    std::fprintf(stderr, "a result is wrong\n");
    return 1;
  }
  const std::string uploads =
      "{\"bytes\": " + std::to_string(pipeline.uploaded_bytes()) +
      ", \"ns\": " + std::to_string(pipeline.upload_ns()) + ", \"shares_processors\": " +
      (setting.device.can(tern::Capability::host_access) ? "true" : "false") + "}";
  counted::print_counters(pools.all(), ", \"uploads\": " + uploads);
}
