// Exports and imports of tensors and tables, whose bytes are compared. Deleters run on any thread
// and in any order, and streams write until the last moment. Also imports invalid structures.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/driver.hpp"
#include "support/arrow_fuzz.hpp"
#include "support/dlpack_fuzz.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern::soak {
namespace {

void feed_hostile(Random& random) {
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> bytes(random.below(400));
    for (std::byte& one : bytes) one = static_cast<std::byte>(random.bits());
    if (random.one_in(2)) {
      test::fuzz_dlpack(bytes);
    } else {
      test::fuzz_arrow(bytes);
    }
  }
}

class ExchangeProgram {
 public:
  explicit ExchangeProgram(const Program& program)
      : program_(program),
        random_(program.seed),
        device_(program.device == "sim" ? sim::open({.seed = random_.bits(),
                                                     .mode = sim::Mode::collect,
                                                     .memory_bytes = std::size_t{256} << 20})
                                        : opened_once(program.device)),
        stream_(device_),
        other_(device_) {}
  ~ExchangeProgram() {
    for (Tensor* const one : away_) one->deleter(one);
    static_cast<void>(device_.try_synchronize());
    static_cast<void>(reclaim_deferred());
  }
  ExchangeProgram(const ExchangeProgram&) = delete;
  ExchangeProgram& operator=(const ExchangeProgram&) = delete;

  void run() {
    for (std::size_t i = 3 + random_.below(6); i > 0; --i) {
      if (random_.one_in(2)) {
        send_tensor();
      } else {
        send_table();
      }
    }
    while (!away_.empty()) release_one();
    device_.synchronize();
    static_cast<void>(reclaim_deferred());
    require(exported_memory().count == 0, "{} exports are left after every deleter was called",
            exported_memory().count);
    if (device_.info().backend == "sim") {
      for (const Finding& found : sim::findings(device_)) {
        throw Mismatch("the checker reports a correct program: " + found.text());
      }
    }
  }

 private:
  using Tensor = abi::DLManagedTensorVersioned;

  static const Device& opened_once(const std::string& spec) {
    static std::map<std::string, Device> all;
    const auto [place, is_new] = all.try_emplace(spec);
    if (is_new) place->second = open_device(spec);
    return place->second;
  }

  /// Sometimes by another thread.
  void release_one() {
    const std::size_t number = random_.below(away_.size());
    Tensor* const tensor = away_[number];
    away_.erase(away_.begin() + static_cast<std::ptrdiff_t>(number));
    if (random_.one_in(4)) {
      std::thread([tensor] { tensor->deleter(tensor); }).join();
    } else {
      tensor->deleter(tensor);
    }
  }

  /// Elements of a random shape, stride and order of a buffer, out, back, and read.
  void send_tensor() {
    std::vector<int> values(64);
    std::iota(values.begin(), values.end(), static_cast<int>(random_.below(1000)));
    Buffer buffer(device_, Shape{values.size()}, DType::i32);
    if (random_.one_in(2)) {
      buffer.copy_from(std::span<const int>(values));
    } else {
      std::ranges::fill(values, values[0]);
      buffer.fill(values[0], stream_);
    }
    const std::size_t rows = 1 + random_.below(4), columns = 1 + random_.below(4);
    const std::array strides = {static_cast<std::int64_t>(1 + random_.below(6)),
                                static_cast<std::int64_t>(1 + random_.below(6))};
    const std::size_t first = random_.below(20);
    Result<StridedBuffer> tensor = StridedBuffer::try_over(buffer, first * sizeof(int), DType::i32,
                                                           Shape{rows, columns}, strides);
    require(bool(tensor), "a tensor inside its buffer is refused: {}",
            tensor ? "" : tensor.failure().text());
    program_.say("tensor {} x {}, strides {} and {}, from {}", rows, columns, strides[0],
                 strides[1], first);
    const bool is_read_only = random_.one_in(3);
    Result<Tensor*> sent =
        try_export_dlpack(*tensor, {.stream = random_.one_in(2) ? StreamRef(other_) : StreamRef(),
                                    .is_read_only = is_read_only});
    if (!sent) {
      require(sent.failure().code() == ErrorCode::dlpack_rejected, "an export fails: {}",
              sent.failure().text());
      return;
    }
    if (random_.one_in(3)) {
      away_.push_back(*sent);
      if (away_.size() > 3) release_one();
      return;
    }
    Result<StridedBuffer> back = try_import_dlpack(device_, *sent, {.stream = other_});
    require(bool(back), "an own tensor is refused: {}", back ? "" : back.failure().text());
    require(back->shape() == tensor->shape() && back->dtype() == DType::i32,
            "a tensor comes back as {}", back->shape().text());
    const std::vector<int> seen = back->contiguous(stream_).as<int>().to_vector<int>();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const std::size_t at = first + i / columns * static_cast<std::size_t>(strides[0]) +
                             i % columns * static_cast<std::size_t>(strides[1]);
      require(seen[i] == values[at],
              "element {} of a tensor that came back is {}, and should be {}", i, seen[i],
              values[at]);
    }
    if (is_read_only) {
      const Result<void> written = back->hull().byte_view(0, 1).try_copy_from("x", 1);
      require(!written, "a tensor that was exported as read-only is written");
    }
  }

  void send_table() {
    const std::size_t rows = random_.below(40);
    std::vector<std::int32_t> numbers(rows);
    std::vector<double> prices(rows);
    std::vector<std::string> texts(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      numbers[i] = static_cast<std::int32_t>(random_.below(1000));
      prices[i] = static_cast<double>(random_.below(1000));
      texts[i] = std::string(random_.below(9), static_cast<char>('a' + random_.below(26)));
    }
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    const Schema schema({{"number", TypeKind::i32, false},
                         {"price", TypeKind::f64, false},
                         {"text", TypeKind::utf8, false}});
    const Table table = Table::make(
        schema, {Column::from<std::int32_t>(device_, numbers),
                 Column::from<double>(device_, prices), Column::from_strings(device_, views)});
    program_.say("table of {} rows", rows);
    ArrowDeviceArray array;
    ArrowSchema form;
    try_export_arrow_schema(table.schema(), &form).value();
    const Result<void> sent = try_export_arrow(
        table, &array, {.stream = random_.one_in(2) ? StreamRef(stream_) : StreamRef()});
    if (!sent) {
      form.release(&form);
      require(sent.failure().code() == ErrorCode::arrow_rejected, "an export fails: {}",
              sent.failure().text());
      return;
    }
    if (random_.one_in(4)) {
      array.array.release(&array.array);
      form.release(&form);
      return;
    }
    const Table back =
        try_import_arrow(device_, &array, &form,
                         {.stream = random_.one_in(2) ? StreamRef(other_) : StreamRef()})
            .value();
    require(back.schema() == table.schema(), "a table comes back with another schema");
    require(back.capacity() == rows, "a table of {} rows comes back with {}", rows,
            back.capacity());
    if (rows == 0) return;
    require(back.columns()[0].values().as<std::int32_t>().to_vector<std::int32_t>() == numbers,
            "numbers of a table that came back are others");
    require(back.columns()[1].values().as<double>().to_vector<double>() == prices,
            "prices of a table that came back are others");
    require(back.columns()[2].to_strings() == texts, "texts of a table that came back are others");
  }

  const Program& program_;
  Random random_;
  const Device device_;
  const Stream stream_, other_;
  std::vector<Tensor*> away_;
};

}  // namespace

void run_exchange(const Program& program) {
  ExchangeProgram(program).run();
  Random random(program.seed + 1);
  feed_hostile(random);
}

}  // namespace tern::soak
