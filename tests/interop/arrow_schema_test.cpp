#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tern/interop/arrow.hpp"

namespace tern {
namespace {

std::vector<LogicalType> all_types() {
  std::vector<LogicalType> types;
  for (unsigned kind = 0; kind <= static_cast<unsigned>(TypeKind::large_binary); ++kind) {
    const TypeKind of = static_cast<TypeKind>(kind);
    const bool has_unit =
        of == TypeKind::time || of == TypeKind::timestamp || of == TypeKind::duration;
    if (!has_unit) types.emplace_back(of);
  }
  for (unsigned unit = 0; unit < 4; ++unit) {
    types.push_back(LogicalType::time(static_cast<TimeUnit>(unit)));
    types.push_back(LogicalType::duration(static_cast<TimeUnit>(unit)));
    types.push_back(LogicalType::timestamp(static_cast<TimeUnit>(unit)));
    types.push_back(LogicalType::timestamp(static_cast<TimeUnit>(unit), "America/New_York"));
  }
  return types;
}

TEST(ArrowSchema, EveryTypeHasAFormatAndComesBack) {
  std::set<std::string> formats;
  for (const LogicalType& type : all_types()) {
    const std::string format = arrow_format(type);
    formats.insert(format);
    EXPECT_EQ(try_arrow_type(format.c_str()).value(), type) << format;
  }
  EXPECT_EQ(formats.size(), 34u);
  EXPECT_EQ(arrow_format(LogicalType::timestamp(TimeUnit::microsecond, "UTC")), "tsu:UTC");
  EXPECT_EQ(arrow_format(TypeKind::large_utf8), "U");
  EXPECT_EQ(arrow_format(TypeKind::date32), "tdD");
}

const Schema sample(
    {{"n", TypeKind::i64, false},
     {"größe", LogicalType::timestamp(TimeUnit::second, "UTC"), true},
     {"s", TypeKind::u32, true, {{"tern.type", "symbol"}, {"k", std::string(3, '\0')}}}},
    {{"origin", "here"}, {"origin", "there"}, {"", ""}});

TEST(ArrowSchema, SaysWhatTheStandardAsksFor) {
  ArrowSchema made;
  ASSERT_TRUE(try_export_arrow_schema(sample, &made));
  EXPECT_STREQ(made.format, "+s");
  EXPECT_EQ(made.flags, 0);
  EXPECT_EQ(made.n_children, 3);
  EXPECT_EQ(made.dictionary, nullptr);
  EXPECT_STREQ(made.children[0]->format, "l");
  EXPECT_STREQ(made.children[0]->name, "n");
  EXPECT_EQ(made.children[0]->flags, 0);
  EXPECT_EQ(made.children[0]->metadata, nullptr);
  EXPECT_STREQ(made.children[1]->name, "größe");
  EXPECT_EQ(made.children[1]->flags, ARROW_FLAG_NULLABLE);
  // A count, and for each pair two lengths with their bytes.
  const char* bytes = made.children[2]->metadata;
  std::int32_t count = 0, length = 0;
  std::memcpy(&count, bytes, 4);
  std::memcpy(&length, bytes + 4, 4);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(length, 9);
  EXPECT_EQ(std::string(bytes + 8, 9), "tern.type");
  made.release(&made);
  EXPECT_EQ(made.release, nullptr);
}

/// As if somebody else had made it: nothing that tells where it comes from.
struct DisguisedSchema {
  explicit DisguisedSchema(const Schema& schema) {
    try_export_arrow_schema(schema, &inner).value();
    outer = inner;
    outer.private_data = this;
    outer.release = [](ArrowSchema* self) {
      DisguisedSchema* const held = static_cast<DisguisedSchema*>(self->private_data);
      held->inner.release(&held->inner);
      ++held->released;
      self->release = nullptr;
    };
  }
  ArrowSchema inner = {}, outer = {};
  int released = 0;
};

TEST(ArrowSchema, ComesBackWholeByteForByte) {
  DisguisedSchema other(sample);
  EXPECT_EQ(try_import_arrow_schema(&other.outer).value(), sample);
  EXPECT_EQ(other.released, 1);
  ArrowSchema ours;
  ASSERT_TRUE(try_export_arrow_schema(sample, &ours));
  EXPECT_EQ(try_import_arrow_schema(&ours).value(), sample);
  EXPECT_EQ(ours.release, nullptr);
  ArrowSchema one;
  ASSERT_TRUE(try_export_arrow_schema(sample.fields()[2], &one));
  EXPECT_EQ(try_import_arrow_field(&one).value(), sample.fields()[2]);
  DisguisedSchema empty((Schema()));
  EXPECT_EQ(try_import_arrow_schema(&empty.outer).value(), Schema());
}

TEST(ArrowSchema, AChildThatWasMovedOutOutlivesTheRest) {
  ArrowSchema made;
  ASSERT_TRUE(try_export_arrow_schema(sample, &made));
  ArrowSchema child = *made.children[2];
  made.children[2]->release = nullptr;
  ArrowSchema moved;
  std::memcpy(&moved, &made, sizeof made);
  std::memset(&made, 0xCD, sizeof made);
  moved.release(&moved);
  EXPECT_EQ(try_import_arrow_field(&child).value(), sample.fields()[2]);
  EXPECT_EQ(child.release, nullptr);
  // One that lacks a child is not taken as a whole one.
  ASSERT_TRUE(try_export_arrow_schema(sample, &made));
  made.children[0]->release(made.children[0]);
  EXPECT_EQ(try_import_arrow_schema(&made).failure().string("field"), "schema.children[0].release");
}

TEST(ArrowSchema, NothingIsNoSchema) {
  EXPECT_EQ(try_import_arrow_schema(nullptr).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(try_import_arrow_field(nullptr).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(try_export_arrow_schema(sample, nullptr).failure().code(), ErrorCode::invalid_argument);
  ArrowSchema released = {};
  EXPECT_EQ(try_import_arrow_schema(&released).failure().code(), ErrorCode::arrow_rejected);
  ArrowSchema one;
  ASSERT_TRUE(try_export_arrow_schema(sample.fields()[0], &one));
  EXPECT_EQ(try_import_arrow_schema(&one).failure().string("field"), "schema.format");
  EXPECT_EQ(one.release, nullptr);
  ASSERT_TRUE(try_export_arrow_schema(sample, &one));
  EXPECT_EQ(try_import_arrow_field(&one).failure().string("value"), "+s");
}

}  // namespace
}  // namespace tern
