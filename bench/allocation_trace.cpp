#include "bench/allocation_trace.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "bench/random.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Id = std::uint32_t;

// These seeds give traces of about the same size as those in the published comparisons.
constexpr std::uint64_t train_seed = 574, kv_seed = 288, etl_seed = 967;

class TraceWriter {
 public:
  explicit TraceWriter(std::string name) { trace_.name = std::move(name); }

  Id take(std::size_t bytes, std::uint32_t stream = 0) {
    const Id block = trace_.block_count++;
    trace_.steps.push_back({block, stream, bytes});
    return block;
  }
  void free(Id block, std::uint32_t stream = 0) { trace_.steps.push_back({block, stream, 0}); }
  template <class... Ids>
  void free_all(Ids... blocks) {
    (free(blocks), ...);
  }
  AllocationTrace finish(std::uint32_t stream_count = 1) {
    trace_.stream_count = stream_count;
    return std::move(trace_);
  }

 private:
  AllocationTrace trace_;
};

/// Trains one transformer. The names are those of the tensors in a hand-written backward pass.
/// Sizes are in bytes; elements have two bytes, or four where the factor is four.
class Training {
 public:
  Training(TraceWriter& out, std::size_t scale)
      : out_(out), B(4 / scale), H(2048 / scale), F(5504 / scale), V(32'000 / scale) {}

  void start() {
    weigh(V * H);
    for (std::size_t layer = 0; layer < layer_count; ++layer) {
      for (const std::size_t elements : {H, H * H, H * H, H * H, H * H, H, H * F, H * F, H * F}) {
        weigh(elements);
      }
    }
    weigh(H);
    weigh(V * H);
    out_.take(32 * mib);
  }

  void iterate(std::size_t S, bool is_first) {
    n = B * S;
    ids_ = out_.take(8 * n);
    inputs_.assign(1, out_.take(2 * n * H));
    layers_.clear();
    gradients_.clear();
    for (std::size_t layer = 0; layer < layer_count; ++layer) forward();
    loss();
    for (std::size_t layer = layer_count; layer > 0; --layer) backward(layer - 1);
    take_gradient(V * H);
    out_.free_all(dy_, ids_, scalar_);
    optimize(is_first);
  }

 private:
  static constexpr std::size_t layer_count = 24, heads = 16;

  struct Layer {
    Id rstd, h1, v, qr, kr, o, lse, r1, rstd2, h2, g, u, sg, m;
  };

  void weigh(std::size_t elements) {
    weights_.push_back(elements);
    out_.take(2 * elements);
  }
  void take_gradient(std::size_t elements) { gradients_.push_back(out_.take(2 * elements)); }

  void forward() {
    Layer a = {};
    Id t = out_.take(4 * n * H);
    a.rstd = out_.take(4 * n);
    a.h1 = out_.take(2 * n * H);
    out_.free(t);
    const Id q = out_.take(2 * n * H), k = out_.take(2 * n * H);
    a.v = out_.take(2 * n * H);
    t = out_.take(2 * n * H);
    a.qr = out_.take(2 * n * H);
    out_.free_all(t, q);
    t = out_.take(2 * n * H);
    a.kr = out_.take(2 * n * H);
    out_.free_all(t, k);
    a.o = out_.take(2 * n * H);
    a.lse = out_.take(4 * heads * n);
    t = out_.take(2 * n * H);
    a.r1 = out_.take(2 * n * H);
    out_.free(t);
    t = out_.take(4 * n * H);
    a.rstd2 = out_.take(4 * n);
    a.h2 = out_.take(2 * n * H);
    out_.free(t);
    a.g = out_.take(2 * n * F);
    a.u = out_.take(2 * n * F);
    a.sg = out_.take(2 * n * F);
    a.m = out_.take(2 * n * F);
    t = out_.take(2 * n * H);
    inputs_.push_back(out_.take(2 * n * H));
    out_.free(t);
    layers_.push_back(a);
  }

  void loss() {
    const Id a = out_.take(2 * n * V), b = out_.take(4 * n * V);
    scalar_ = out_.take(4);
    const Id c = out_.take(4 * n * V);
    out_.free(a);
    const Id d = out_.take(4 * n * V);
    out_.free_all(c, b);
    const Id e = out_.take(2 * n * V);
    out_.free(d);
    dy_ = out_.take(2 * n * H);
    take_gradient(V * H);
    out_.free_all(e, inputs_.back());
  }

  void backward(std::size_t layer) {
    const Layer& f = layers_[layer];
    const Id dm = out_.take(2 * n * F);
    take_gradient(H * F);
    out_.free(f.m);
    const Id dsg = out_.take(2 * n * F), du = out_.take(2 * n * F);
    out_.free_all(dm, f.sg, f.u);
    const Id dg = out_.take(2 * n * F);
    out_.free_all(dsg, f.g);
    const Id a = out_.take(2 * n * H);
    take_gradient(H * F);
    const Id b = out_.take(2 * n * H);
    take_gradient(H * F);
    out_.free_all(dg, du, f.h2);
    const Id c = out_.take(2 * n * H);
    out_.free_all(a, b);
    Id t = out_.take(4 * n * H);
    const Id dr = out_.take(2 * n * H);
    take_gradient(H);
    out_.free_all(t, c, f.rstd2, f.r1);
    const Id dy2 = out_.take(2 * n * H);
    out_.free_all(dr, dy_);
    const Id d_o = out_.take(2 * n * H);
    take_gradient(H * H);
    const Id dq = out_.take(2 * n * H), dk = out_.take(2 * n * H), dv = out_.take(2 * n * H);
    t = out_.take(4 * n * H);
    out_.free_all(t, d_o, f.o, f.lse, f.qr, f.kr, f.v);
    const Id da = out_.take(2 * n * H);
    for (int i = 0; i < 3; ++i) take_gradient(H * H);
    out_.free_all(dq, dk, dv, f.h1);
    t = out_.take(4 * n * H);
    const Id dx = out_.take(2 * n * H);
    take_gradient(H);
    out_.free_all(t, da, f.rstd);
    dy_ = out_.take(2 * n * H);
    out_.free_all(dx, dy2, inputs_[layer]);
  }

  void optimize(bool is_first) {
    for (const std::size_t elements : weights_) {
      for (int i = 0; is_first && i < 3; ++i) out_.take(4 * elements);
    }
    for (const std::size_t elements : weights_) {
      const Id p = out_.take(4 * elements), r = out_.take(4 * elements);
      out_.free_all(r, p);
    }
    for (const Id gradient : gradients_) out_.free(gradient);
  }

  TraceWriter& out_;
  const std::size_t B, H, F, V;  // batch, width, inner width, vocabulary
  std::size_t n = 0;             // tokens in the batch
  std::vector<std::size_t> weights_;
  std::vector<Layer> layers_;
  std::vector<Id> inputs_, gradients_;
  Id ids_ = 0, scalar_ = 0, dy_ = 0;
};

struct KvRequest {
  std::size_t tokens = 0;
  std::ptrdiff_t left = 0;
  std::vector<Id> blocks = {};
};

struct Column {
  Id block = 0;
  std::size_t bytes = 0;
};

struct Table {
  std::uint32_t stream = 0;
  std::size_t bytes = 0;
  std::vector<Column> columns = {};
};

class Etl {
 public:
  static constexpr std::uint32_t stream_count = 4;

  explicit Etl(TraceWriter& out) : out_(out) {}

  void operate() {
    const auto stream = static_cast<std::uint32_t>(random_.below(stream_count));
    const auto rows = static_cast<std::size_t>(std::min(6e7, random_.lognormal(13.5, 1.5)));
    const std::size_t columns = random_.between(2, 8);
    if (tables_.empty() || random_.chance(0.35)) {
      read(stream, rows, columns);
    } else {
      derive(stream, random_.below(tables_.size()));
    }
    while (table_bytes_ > 24 * gib || tables_.size() > 24) drop(random_.below(tables_.size()));
  }

 private:
  void read(std::uint32_t stream, std::size_t rows, std::size_t columns) {
    constexpr std::size_t widths[] = {4, 8, 8, 1};
    Table table = {.stream = stream};
    for (std::size_t i = 0; i < columns; ++i) {
      add_column(table, rows * widths[random_.below(4)] + 64);
    }
    keep(std::move(table));
  }

  void derive(std::uint32_t stream, std::size_t from) {
    const double bytes = static_cast<double>(tables_[from].bytes);
    const double columns = static_cast<double>(tables_[from].columns.size());
    const Id hash = out_.take(static_cast<std::size_t>(bytes / (2 * columns)) + 256, stream);
    Id temporary[3];
    for (Id& one : temporary) {
      const double share = random_.uniform(0.05, 0.6);
      one = out_.take(static_cast<std::size_t>(bytes * share / columns) + 256, stream);
    }
    Table table = {.stream = stream};
    for (const Column& source : tables_[from].columns) {
      const double selected = static_cast<double>(source.bytes) * random_.uniform(0.1, 1.1);
      add_column(table, std::max<std::size_t>(256, static_cast<std::size_t>(selected)));
    }
    out_.free(hash, stream);
    for (const Id one : temporary) out_.free(one, stream);
    keep(std::move(table));
  }

  void add_column(Table& table, std::size_t bytes) {
    table.columns.push_back({out_.take(bytes, table.stream), bytes});
    table.bytes += bytes;
  }
  void keep(Table table) {
    table_bytes_ += table.bytes;
    tables_.push_back(std::move(table));
  }
  void drop(std::size_t index) {
    for (const Column& column : tables_[index].columns) {
      out_.free(column.block, tables_[index].stream);
    }
    table_bytes_ -= tables_[index].bytes;
    tables_[index] = std::move(tables_.back());
    tables_.pop_back();
  }

  TraceWriter& out_;
  Random random_{etl_seed};
  std::vector<Table> tables_;
  std::size_t table_bytes_ = 0;
};

}  // namespace

AllocationTrace train_varlen(std::size_t scale) {
  TraceWriter out("train_varlen");
  Training training(out, scale);
  training.start();
  Random random(train_seed);
  for (int iteration = 0; iteration < 10; ++iteration) {
    const double drawn = std::ceil(random.lognormal(std::log(1434.0), 0.5) / 64) * 64;
    training.iterate(static_cast<std::size_t>(std::clamp(drawn, 128.0, 4096.0)), iteration == 0);
  }
  return out.finish();
}

AllocationTrace growing_kv_cache() {
  constexpr std::size_t cache_blocks = 8, tokens_per_step = 16;
  TraceWriter out("growing KV cache");
  Random random(kv_seed);
  std::vector<KvRequest> active;
  for (int i = 0; i < 40; ++i) out.take(64 * mib);
  for (int step = 0; step < 600; ++step) {
    if (random.chance(0.5)) {
      KvRequest request;
      request.tokens = static_cast<std::size_t>(std::min(4096.0, random.lognormal(5, 1.2))) + 1;
      request.left = static_cast<std::ptrdiff_t>(std::min(2048.0, random.lognormal(5.3, 1))) + 1;
      Id temporary[3];
      for (Id& one : temporary) one = out.take(8192 * request.tokens);
      for (std::size_t i = 0; i < cache_blocks; ++i) {
        request.blocks.push_back(out.take(4096 * request.tokens));
      }
      for (const Id one : temporary) out.free(one);
      active.push_back(std::move(request));
    }
    const std::size_t batch = std::max<std::size_t>(1, active.size());
    std::vector<Id> scratch;
    for (const std::size_t factor : {1u, 3u, 1u, 2u}) {
      scratch.push_back(out.take(8192 * batch * factor));
    }
    for (; !scratch.empty(); scratch.pop_back()) out.free(scratch.back());
    for (KvRequest& request : active) {
      request.tokens += tokens_per_step;
      request.left -= static_cast<std::ptrdiff_t>(tokens_per_step);
      for (Id& block : request.blocks) {
        const Id old = block;
        block = out.take(4096 * request.tokens);
        out.free(old);
      }
      if (request.left > 0) continue;
      for (const Id block : request.blocks) out.free(block);
    }
    std::erase_if(active, [](const KvRequest& request) { return request.left <= 0; });
  }
  return out.finish();
}

AllocationTrace multi_stream_etl() {
  TraceWriter out("multi-stream ETL");
  Etl etl(out);
  for (int operation = 0; operation < 4'000; ++operation) etl.operate();
  return out.finish(Etl::stream_count);
}

AllocationTrace checkerboard() {
  TraceWriter out("checkerboard");
  std::vector<Id> kept;
  for (int i = 0; i < 60; ++i) kept.push_back(out.take(32 * mib));
  std::vector<Id> blocks;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i % 2 == 1) {
      out.free(kept[i]);
    } else {
      blocks.push_back(kept[i]);
    }
  }
  for (int i = 0; i < 15; ++i) blocks.push_back(out.take(48 * mib));
  for (const Id block : blocks) out.free(block);
  return out.finish();
}

TraceFacts facts_of(const AllocationTrace& trace) {
  TraceFacts facts;
  std::unordered_set<std::size_t> sizes;
  std::vector<std::size_t> live(trace.block_count);
  std::size_t live_bytes = 0;
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    const TraceStep& step = trace.steps[i];
    if (step.bytes == 0) {
      live_bytes -= live[step.block];
      --facts.left_blocks;
      continue;
    }
    ++facts.allocations;
    ++facts.left_blocks;
    sizes.insert(step.bytes);
    live[step.block] = step.bytes;
    live_bytes += step.bytes;
    if (live_bytes <= facts.peak_bytes) continue;
    facts.peak_bytes = live_bytes;
    facts.peak_step = i;
  }
  facts.distinct_sizes = sizes.size();
  return facts;
}

std::size_t live_bytes_before(const AllocationTrace& trace, std::size_t step) {
  std::vector<std::size_t> live(trace.block_count);
  std::size_t live_bytes = 0;
  for (std::size_t i = 0; i < step; ++i) {
    const TraceStep& one = trace.steps[i];
    live_bytes += one.bytes;
    if (one.bytes == 0) live_bytes -= live[one.block];
    live[one.block] = one.bytes;
  }
  return live_bytes;
}

}  // namespace tern::bench
