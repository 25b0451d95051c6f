#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "support/sample_traces.hpp"
#include "support/thorough.hpp"
#include "support/trace_fuzz.hpp"
#include "tern/core/version.hpp"
#include "tern/trace/trace_check.hpp"
#include "trace/trace_format.hpp"

namespace tern::test {
namespace {

using namespace trace_format;

// --- round trip ---------------------------------------------------------------------------------

bool are_equal(const Touch& a, const Touch& b) {
  return a.kind == b.kind && a.range.space == b.range.space && a.range.offset == b.range.offset &&
         a.range.bytes == b.range.bytes && a.generation == b.generation &&
         a.is_assumed == b.is_assumed;
}

void expect_equal(const TraceRecord& a, const TraceRecord& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.operation, b.operation);
  EXPECT_EQ(a.actor_kind, b.actor_kind);
  EXPECT_EQ(a.actor, b.actor);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.event, b.event);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.name, b.name);
  EXPECT_STREQ(a.site.file, b.site.file);
  EXPECT_STREQ(a.site.function, b.site.function);
  EXPECT_EQ(a.site.line, b.site.line);
  EXPECT_EQ(a.tag, b.tag);
  EXPECT_EQ(a.was_refused, b.was_refused);
  EXPECT_TRUE(std::ranges::equal(a.touches, b.touches, are_equal));
}

TEST(TraceReader, GivesBackEveryFieldOfEveryRecord) {
  tools::Random random(1);
  const std::string texts[] = {"", "a", "name", "\u00e9t\u00e9", std::string(4096, 'n')};
  const auto any = [&] { return random.next() >> random.below(64); };
  const auto text = [&] { return texts[random.below(5)].c_str(); };
  std::vector<std::vector<Touch>> touches;
  std::vector<TraceRecord> records;
  for (int i = 0; i < 3000; ++i) {
    std::vector<Touch>& some = touches.emplace_back(random.below(4));
    for (Touch& touch : some) {
      touch = {static_cast<TouchKind>(random.below(7)),
               {static_cast<std::uint32_t>(any()), any(), 0},
               any(),
               random.below(2) == 0};
      touch.range.bytes = std::min(any(), ~touch.range.offset);
    }
    records.push_back({.kind = static_cast<RecordKind>(random.below(13)),
                       .operation = static_cast<OperationKind>(random.below(7)),
                       .actor_kind = static_cast<ActorKind>(random.below(4)),
                       .actor = static_cast<ActorId>(random.below(max_actors)),
                       .host = static_cast<ActorId>(random.below(max_actors)),
                       .device = static_cast<std::uint32_t>(any()),
                       .event = any(),
                       .sequence = any(),
                       .name = text(),
                       .touches = some,
                       .site = {text(), text(), static_cast<std::uint32_t>(any())},
                       .tag = random.below(2) == 0 ? "one" : "",
                       .was_refused = random.below(2) == 0});
  }
  for (std::size_t i = 0; i < records.size(); ++i) records[i].touches = touches[i];
  const TraceBytes bytes = trace_of(records, {"the context", "the replay"});
  Result<TraceReader> reader = TraceReader::try_read_bytes(bytes);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->writer(), "tern " TERN_VERSION);
  EXPECT_EQ(reader->context(), "the context");
  EXPECT_EQ(reader->replay(), "the replay");
  TraceRecord record;
  for (const TraceRecord& written : records) {
    ASSERT_TRUE(*reader->try_next(record));
    expect_equal(written, record);
  }
  EXPECT_FALSE(*reader->try_next(record));
  EXPECT_FALSE(*reader->try_next(record));
  EXPECT_TRUE(reader->is_complete());
  EXPECT_EQ(reader->record_count(), records.size());
  EXPECT_EQ(reader->bytes_read(), bytes.size());
}

TEST(TraceReader, KeepsTheStringsOfCallSitesAsLongAsItLives) {
  std::vector<TraceRecord> records(5000);
  std::vector<std::string> names(5000);
  for (std::size_t i = 0; i < records.size(); ++i) {
    names[i] = "file-" + std::to_string(i);
    records[i].site = {names[i].c_str(), "f", 1};
  }
  const TraceBytes bytes = trace_of(records);
  Result<TraceReader> made = TraceReader::try_read_bytes(bytes);
  TraceRecord record;
  ASSERT_TRUE(*made->try_next(record));
  const CallSite first = record.site;
  TraceReader reader = *std::move(made);
  while (*reader.try_next(record)) continue;
  EXPECT_STREQ(first.file, "file-0");
  EXPECT_STREQ(record.site.file, "file-4999");
}

TEST(TraceReader, ReadsFilesAndPipes) {
  const TraceBytes bytes = full_trace();
  const std::string path = testing::TempDir() + "tern-reader-" + std::to_string(getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ASSERT_EQ(write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  Result<TraceReader> reader = TraceReader::try_open(path);
  TraceRecord record;
  while (*reader->try_next(record)) continue;
  EXPECT_TRUE(reader->is_complete());
  EXPECT_EQ(reader->record_count(), 13u);
  lseek(file, 0, SEEK_SET);
  {
    Result<TraceReader> by_descriptor = TraceReader::try_read_descriptor(file, "standard input");
    while (*by_descriptor->try_next(record)) continue;
    EXPECT_EQ(by_descriptor->record_count(), 13u);
  }
  EXPECT_EQ(lseek(file, 0, SEEK_CUR), static_cast<off_t>(bytes.size())) << "it is left open";
  close(file);
  unlink(path.c_str());
  const Result<TraceReader> missing = TraceReader::try_open(path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.failure().code(), ErrorCode::file);
  const Result<TraceReader> folder = TraceReader::try_open("/");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.failure().text(), "file '/': read failed: Is a directory.");
}

// --- golden -------------------------------------------------------------------------------------

TEST(TraceReader, IsWrittenTheSameEverywhere) {
  const TraceBytes bytes = full_trace();
  // The first chunk has the version of Tern. Its length is the second number of its header.
  const auto about_bytes = std::to_integer<std::size_t>(bytes[file_header_bytes + 4]);
  const std::span<const std::byte> rest =
      std::span(bytes).subspan(file_header_bytes + chunk_header_bytes + about_bytes);
  // A change here is a change of the format: raise its version, and say so in its specification.
  EXPECT_EQ(rest.size(), 505u);
  EXPECT_EQ(crc32c(rest), 1'910'037'704u);
}

// --- what is refused ----------------------------------------------------------------------------

/// A trace by hand: the header, and chunks with right checksums.
class HandMade {
 public:
  HandMade() {
    for (const std::uint8_t byte : magic) put_u8(bytes, byte);
    put_u32(bytes, version);
    put_u32(bytes, 0);
  }
  HandMade& chunk(std::uint32_t kind, const TraceBytes& payload) {
    const auto header = chunk_header(kind, payload);
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return *this;
  }
  HandMade& about() { return chunk(chunk_about, of({0, 0, 0})); }
  HandMade& entries(const TraceBytes& payload) { return about().chunk(chunk_records, payload); }

  static TraceBytes of(std::initializer_list<std::uint64_t> values) {
    TraceBytes out;
    for (const std::uint64_t value : values) put_varint(out, value);
    return out;
  }
  /// A record, entry by entry, with some fields changed. All are numbers below 128 by default.
  static TraceBytes record(const std::function<void(std::vector<std::uint64_t>&)>& change,
                           const TraceBytes& touches = {}) {
    std::vector<std::uint64_t> fields(15, 0);
    fields[1] = 2;  // operation
    change(fields);
    TraceBytes out;
    put_u8(out, entry_record);
    for (std::size_t i = 0; i < 4; ++i) put_u8(out, static_cast<std::uint8_t>(fields[i]));
    for (std::size_t i = 4; i < fields.size(); ++i) put_varint(out, fields[i]);
    out.insert(out.end(), touches.begin(), touches.end());
    return out;
  }

  TraceBytes bytes;
};

std::string why_refused(const TraceBytes& bytes, ErrorCode code = ErrorCode::bad_format) {
  Result<TraceReader> reader = TraceReader::try_read_bytes(bytes);
  Failure failure(ErrorCode::driver, "not refused");
  if (!reader) {
    failure = reader.failure();
  } else {
    TraceRecord record;
    for (;;) {
      const Result<bool> more = reader->try_next(record);
      if (!more) {
        failure = more.failure();
        const Result<bool> again = reader->try_next(record);
        EXPECT_FALSE(again);
        EXPECT_FALSE(reader->is_complete());
        break;
      }
      if (!*more) return "not refused";
    }
  }
  EXPECT_EQ(failure.code(), code);
  return failure.text();
}

std::string refused(std::size_t field, std::uint64_t value) {
  return why_refused(
      HandMade().entries(HandMade::record([&](auto& fields) { fields[field] = value; })).bytes);
}

TEST(TraceReader, SaysByteFieldValueAndBound) {
  EXPECT_EQ(refused(4, 4096),
            "the trace cannot be read: an actor at byte 48 is 4096 and must be below 4096. The "
            "file is damaged or is not a Tern trace.");
  const Result<TraceReader> reader = TraceReader::try_read_bytes(
      std::as_bytes(std::span(std::string_view("something else entirely"))));
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.failure().number("offset"), 0u);
  EXPECT_EQ(reader.failure().number("value"), 's');
  EXPECT_EQ(reader.failure().string("field"), "the mark of a trace");
}

TEST(TraceReader, BoundsEveryField) {
  const std::pair<std::size_t, std::uint64_t> most[] = {
      {0, 12}, {1, 6}, {2, 3}, {3, 1}, {4, 4095}, {5, 4095}, {6, 0xffff'ffff}, {12, 0xffff'ffff}};
  for (const auto& [field, value] : most) {
    EXPECT_EQ(refused(field, value), "not refused") << field;
    EXPECT_NE(refused(field, value + 1), "not refused") << field;
  }
  for (const unsigned free : {7u, 8u}) EXPECT_EQ(refused(free, ~std::uint64_t{0}), "not refused");
  for (const unsigned string : {9u, 10u, 11u, 13u}) {
    EXPECT_NE(refused(string, 1).find("is 1 and must be a string that was defined before"),
              std::string::npos)
        << string;
  }
  EXPECT_NE(refused(14, 1).find("the number of touches"), std::string::npos);
  EXPECT_NE(refused(14, 4097).find("4096 at most"), std::string::npos);
}

TEST(TraceReader, BoundsEveryTouch) {
  const auto touch = [](std::uint8_t kind, std::uint64_t space, std::uint64_t offset,
                        std::uint64_t bytes) {
    TraceBytes out;
    put_u8(out, kind);
    for (const std::uint64_t value : {space, offset, bytes, std::uint64_t{0}}) {
      put_varint(out, value);
    }
    return why_refused(
        HandMade().entries(HandMade::record([](auto& fields) { fields[14] = 1; }, out)).bytes);
  };
  constexpr std::uint64_t all = ~std::uint64_t{0};
  EXPECT_EQ(touch(6, 0xffff'ffff, 0, all), "not refused");
  EXPECT_EQ(touch(0x86, 0, all, 0), "not refused");
  EXPECT_NE(touch(7, 0, 0, 0).find("the kind of a touch"), std::string::npos);
  EXPECT_NE(touch(0x87, 0, 0, 0).find("the kind of a touch"), std::string::npos);
  EXPECT_NE(touch(0, 0x1'0000'0000, 0, 0).find("a memory space"), std::string::npos);
  EXPECT_NE(touch(0, 0, all, 1).find("the bytes of a touch"), std::string::npos);
  EXPECT_NE(touch(0, 0, 2, all - 1).find("the bytes of a touch"), std::string::npos);
}

TEST(TraceReader, RefusesStringsThatAreNone) {
  const auto string = [](std::initializer_list<std::uint64_t> entry) {
    return why_refused(HandMade().entries(HandMade::of(entry)).bytes);
  };
  EXPECT_EQ(string({1, 1, 'a'}), "not refused");
  EXPECT_NE(string({1, 0}).find("the length of a string"), std::string::npos);
  EXPECT_NE(string({1, 2, 'a'}).find("is 2 and must be inside its chunk"), std::string::npos);
  EXPECT_NE(string({1, 4097}).find("is 4097 and must be 4096 bytes at most"), std::string::npos);
  EXPECT_NE(string({1, 2, 'a', 0}).find("text without a zero byte"), std::string::npos);
  EXPECT_NE(string({3}).find("the kind of an entry at byte 43 is 3"), std::string::npos);
  EXPECT_NE(string({0}).find("the kind of an entry"), std::string::npos);
}

TEST(TraceReader, RefusesMoreStringsThanTheFormatAllows) {
  HandMade trace;
  trace.about();
  for (std::size_t chunk = 0; chunk <= max_strings / 65'536; ++chunk) {
    TraceBytes payload;
    for (std::size_t i = 0; i < (chunk == max_strings / 65'536 ? 1 : 65'536); ++i) {
      for (const unsigned byte : {1u, 1u, 97u}) put_u8(payload, static_cast<std::uint8_t>(byte));
    }
    trace.chunk(chunk_records, payload);
  }
  EXPECT_NE(why_refused(trace.bytes).find("is 262145 and must be 262144 at most"),
            std::string::npos);
}

TEST(TraceReader, RefusesNumbersThatAreTooLongOrTooLarge) {
  const auto number = [](const std::vector<std::uint8_t>& digits) {
    TraceBytes entry = HandMade::record([](auto&) {});
    entry.resize(5);  // up to the actor
    for (int i = 0; i < 3; ++i) put_u8(entry, 0);
    for (const std::uint8_t digit : digits) put_u8(entry, digit);  // the event
    for (int i = 0; i < 7; ++i) put_u8(entry, 0);
    return why_refused(HandMade().entries(entry).bytes);
  };
  const std::vector<std::uint8_t> nine(9, 0xff);
  const auto with = [&](std::uint8_t last) {
    std::vector<std::uint8_t> all = nine;
    all.push_back(last);
    return all;
  };
  EXPECT_EQ(number({0}), "not refused");
  EXPECT_EQ(number(with(1)), "not refused");
  EXPECT_NE(number(with(2)).find("below 2^64"), std::string::npos);
  EXPECT_NE(number(with(0x81)).find("below 2^64"), std::string::npos);
  EXPECT_NE(number({0x80, 0}).find("as few bytes"), std::string::npos);
}

TEST(TraceReader, RefusesDamagedHeadersAndChunks) {
  const TraceBytes good = HandMade().about().chunk(chunk_end, HandMade::of({0, 0})).bytes;
  EXPECT_EQ(why_refused(good), "not refused");
  const auto changed = [&](std::size_t at, std::uint8_t value) {
    TraceBytes bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  for (std::size_t i = 0; i < magic.size(); ++i) {
    EXPECT_NE(why_refused(changed(i, 0)).find("the mark of a trace"), std::string::npos);
  }
  EXPECT_NE(why_refused(changed(8, 0)).find("the version"), std::string::npos);
  EXPECT_EQ(why_refused(changed(8, 2), ErrorCode::unsupported),
            "the trace is a trace of format 2, and this version of Tern reads formats up to 1. "
            "Read it with the version that wrote it.");
  EXPECT_NE(why_refused(changed(12, 1)).find("the reserved word"), std::string::npos);
  EXPECT_NE(why_refused(changed(16, 2)).find("the checksum"), std::string::npos);
  EXPECT_NE(why_refused(changed(22, 0x11)).find("the length of a chunk at byte 20"),
            std::string::npos);
  EXPECT_NE(why_refused(changed(24, 0)).find("the checksum of a chunk at byte 24"),
            std::string::npos);
  for (const unsigned size : {0u, 7u, 8u, 15u}) {
    EXPECT_NE(why_refused({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}),
              "not refused")
        << size;
  }
}

TEST(TraceReader, PassesOverWhatItMayAndRefusesWhatItMustNot) {
  const TraceBytes end = HandMade::of({0, 0});
  EXPECT_EQ(why_refused(HandMade().about().chunk(skippable | 9, {}).chunk(chunk_end, end).bytes),
            "not refused");
  EXPECT_NE(why_refused(HandMade().about().chunk(9, {}).bytes).find("the kind of a chunk"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().chunk(chunk_end, end).bytes).find("the first chunk"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().about().about().bytes).find("a later chunk"), std::string::npos);
  EXPECT_NE(why_refused(HandMade().chunk(chunk_about, HandMade::of({0, 0, 0, 0})).bytes)
                .find("the rest of a chunk"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().chunk(chunk_about, HandMade::of({0, 0})).bytes)
                .find("the replay line"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().about().chunk(chunk_end, end).about().bytes)
                .find("what follows the end"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().about().chunk(chunk_end, HandMade::of({1, 0})).bytes)
                .find("the number of records"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().about().chunk(chunk_end, HandMade::of({0, 1})).bytes)
                .find("the number of strings"),
            std::string::npos);
  EXPECT_NE(why_refused(HandMade().about().chunk(chunk_end, HandMade::of({0, 0, 0})).bytes)
                .find("the rest of a chunk"),
            std::string::npos);
}

TEST(TraceReader, CountsWhatIsThereIfTheEndIsMissing) {
  const TraceBytes whole = trace_of(RandomTrace(5, 1500).records());
  std::uint64_t before = 0;
  for (std::size_t size = file_header_bytes; size < whole.size(); size += 97) {
    const TraceBytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    Result<TraceReader> reader = TraceReader::try_read_bytes(part);
    ASSERT_TRUE(reader) << size;
    TraceRecord record;
    for (;;) {
      const Result<bool> more = reader->try_next(record);
      ASSERT_TRUE(more) << size << " " << more.failure().text();
      if (!*more) break;
    }
    EXPECT_FALSE(reader->is_complete());
    EXPECT_GE(reader->record_count(), before);
    before = reader->record_count();
  }
  EXPECT_GT(before, 500u);
}

TEST(TraceReader, DoesNotFillTheTableOfTags) {
  std::vector<std::string> names;
  HandMade trace;
  TraceBytes payload;
  std::uint64_t number = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string name = "hostile-" + std::to_string(i);
    put_u8(payload, entry_string);
    put_varint(payload, name.size());
    for (const char c : name) put_u8(payload, static_cast<std::uint8_t>(c));
    ++number;
    const TraceBytes record = HandMade::record([&](auto& fields) { fields[13] = number; });
    payload.insert(payload.end(), record.begin(), record.end());
  }
  trace.entries(payload);
  std::uint64_t left_out = 0;
  for (int round = 0; round < 2; ++round) {
    Result<TraceReader> reader = TraceReader::try_read_bytes(trace.bytes);
    TraceRecord record;
    ASSERT_TRUE(*reader->try_next(record));
    EXPECT_EQ(record.tag.name(), "hostile-0");
    while (*reader->try_next(record)) continue;
    EXPECT_EQ(record.tag, Tag());
    EXPECT_TRUE(round == 0 || reader->tags_left_out() == left_out) << "known names cost nothing";
    left_out = reader->tags_left_out();
    EXPECT_GE(left_out, 6000u - 4096u);
  }
  EXPECT_FALSE(Tag::find("hostile-5999"));
  EXPECT_EQ(tags_refused(), 0u);
}

// --- damage of all kinds ------------------------------------------------------------------------

TEST(TraceReader, SurvivesAFlippedBitAnywhere) {
  const TraceBytes good = full_trace();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      TraceBytes bytes = good;
      bytes[at] ^= std::byte{1} << bit;
      EXPECT_TRUE(check_bytes(bytes).failure || at >= 8) << at;
      // The chunk's kind, length, checksum and payload are all covered.
      const CheckSummary summary = check_bytes(bytes);
      EXPECT_TRUE(summary.failure || !summary.is_complete) << "byte " << at << " bit " << bit;
      fuzz_trace(bytes);
    }
  }
}

TEST(TraceReader, SurvivesAnEndAnywhere) {
  const TraceBytes good = full_trace();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::span<const std::byte> part = std::span(good).first(size);
    EXPECT_FALSE(check_bytes(part).is_complete);
    fuzz_trace(part);
  }
}

TEST(TraceReader, SurvivesAnyBytes) {
  constexpr std::uint64_t seeds = is_thorough ? 20'000 : 4000;
  const std::vector<TraceBytes> samples = sample_traces();
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    tools::Random random(seed);
    TraceBytes bytes = samples[random.below(samples.size())];
    if (seed % 4 == 0) bytes.resize(random.below(200));
    for (std::uint64_t i = 0, count = 1 + random.below(20); i < count && !bytes.empty(); ++i) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    fuzz_trace(bytes);
  }
}

}  // namespace
}  // namespace tern::test
