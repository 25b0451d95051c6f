#include "tern/trace/finding.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tern {
namespace {

constexpr FindingCode all_codes[] = {
#define TERN_FINDING(enumerator, number, title) FindingCode::enumerator,
    TERN_FOR_EACH_FINDING(TERN_FINDING)
#undef TERN_FINDING
};

TEST(FindingCode, HasATitleAndATextOfItsOwn) {
  std::set<std::string> texts;
  for (const FindingCode code : all_codes) {
    EXPECT_NE(title(code), "unknown");
    EXPECT_TRUE(texts.insert(std::string(title(code))).second) << title(code);
    EXPECT_TRUE(texts.insert(code_text(code)).second) << code_text(code);
  }
  EXPECT_EQ(code_text(FindingCode::reuse_before_ready), "TERN-S103");
  EXPECT_EQ(title(FindingCode::reuse_before_ready), "reuse-before-ready");
  EXPECT_EQ(title(static_cast<FindingCode>(1)), "unknown");
}

Finding sample() {
  Finding finding;
  finding.code = FindingCode::reuse_before_ready;
  finding.context = "sim:0  seed 0x1c9f  schedule lazy";
  finding.step = 412;
  finding.range = {1, 0x40000, 65536};
  finding.what = "w";
  finding.now = "n";
  finding.before = {"b1", "b2"};
  finding.block = "k";
  finding.order = "o";
  finding.fix = "f";
  finding.replay = "r";
  return finding;
}

TEST(Finding, HasItsLabelsInAFixedOrderAndTheirTextInColumnEleven) {
  EXPECT_EQ(sample().text(),
            "TERN-S103 reuse-before-ready                    "
            "sim:0  seed 0x1c9f  schedule lazy  step 412\n"
            "  what    w\n"
            "  now     n\n"
            "  before  b1\n"
            "          b2\n"
            "  block   k\n"
            "  order   o\n"
            "  fix     f\n"
            "  replay  r\n");
}

TEST(Finding, LeavesOutALabelWithoutContent) {
  Finding finding;
  finding.context = "trace";
  finding.what = "w";
  EXPECT_EQ(finding.text(),
            "TERN-S101 missing-wait                          trace  step 0\n"
            "  what    w\n");
}

TEST(Finding, HasTheSameFieldsAsJson) {
  EXPECT_EQ(sample().json(),
            R"({"code": "TERN-S103", "title": "reuse-before-ready", )"
            R"("context": "sim:0  seed 0x1c9f  schedule lazy", "step": 412, "space": 1, )"
            R"("offset": 262144, "bytes": 65536, "what": "w", "now": "n", "before": ["b1", "b2"], )"
            R"("block": "k", "order": "o", "fix": "f", "replay": "r"})");
}

TEST(Finding, EscapesWhatJsonDoesNotTake) {
  Finding finding;
  finding.what = "a \"b\" \\ \n\t\x01 \xc3\xa4";
  EXPECT_NE(finding.json().find(R"("what": "a \"b\" \\ \u000a\u0009\u0001 )"
                                "\xc3\xa4\""),
            std::string::npos)
      << finding.json();
}

TEST(Finding, LetsNoNameBreakALineOrReachTheTerminal) {
  Finding finding;
  finding.context = "sim:0\x1b]0;x\x07\n";
  finding.now = "kernel \"x\n  fix     nothing\x1b[2J\x7f\" \xc3\xa4";
  EXPECT_NE(finding.text().find("  now     kernel \"x?  fix     nothing?[2J?\" \xc3\xa4\n"),
            std::string::npos)
      << finding.text();
  EXPECT_NE(finding.text().find(" sim:0?]0;x??  step 0\n"), std::string::npos) << finding.text();
}

TEST(Finding, JsonIsUtf8WhateverTheNamesAre) {
  Finding finding;
  // Whole characters stay; bytes that are none, cut ones, surrogates and long forms do not.
  finding.what = "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xa6";
  finding.now = "\xff \xc3 \xe2\x82 \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 end\xc3";
  const std::string json = finding.json();
  EXPECT_NE(json.find("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xa6"), std::string::npos)
      << json;
  EXPECT_NE(json.find("\\ufffd \\ufffd \\ufffd\\ufffd \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd "
                      "\\ufffd\\ufffd\\ufffd\\ufffd end\\ufffd"),
            std::string::npos)
      << json;
}

}  // namespace
}  // namespace tern
