#include "backends/device_spec.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

struct Good {
  std::string_view text, canonical;
};

TEST(DeviceSpec, ReadsAndPrintsCanonically) {
  for (const Good& good : {
           Good{"host", "host"},
           {"HOST", "host"},
           {"host:0", "host"},
           {"host:1", "host:1"},
           {"sim", "sim:0"},
           {"Sim:3", "sim:3"},
           {"cuda", "cuda:0"},
           {"cuda:1", "cuda:1"},
           {"CUDA:007", "cuda:7"},
           {"cuda:4294967295", "cuda:4294967295"},
           {"gpu", "cuda:0"},
           {"GPU:2", "cuda:2"},
           {"gPu:0?x=1", "cuda:0?x=1"},
           {"opencl:0", "opencl:0"},
           {"my_backend2", "my_backend2:0"},
           {"host?threads=4", "host?threads=4"},
           {"host:0?THREADS=4", "host?threads=4"},
           {"sim:0?seed=7&delay=2", "sim:0?delay=2&seed=7"},
           {"sim?b=2&a=1&c=3", "sim:0?a=1&b=2&c=3"},
           {"sim?a=b=c", "sim:0?a=b=c"},
           {"sim?a=B?:", "sim:0?a=B?:"},
           {"disk:/Tmp/My File", "disk:/Tmp/My File"},
           {"DISK:relative?not=option", "disk:relative?not=option"},
           {"disk:a:b", "disk:a:b"},
       }) {
    const Result<DeviceSpec> spec = try_parse_device_spec(good.text);
    ASSERT_TRUE(spec) << good.text << ": " << spec.failure().text();
    EXPECT_EQ(spec->text(), good.canonical);
    EXPECT_EQ(parse_device_spec(spec->text()), *spec) << "the canonical text means the same";
  }
}

TEST(DeviceSpec, TakesTheTextApart) {
  const DeviceSpec spec = parse_device_spec("SIM:3?Seed=Abc&delay=2");
  EXPECT_EQ(spec.backend, "sim");
  EXPECT_EQ(spec.index, 3u);
  EXPECT_EQ(spec.option("seed"), "Abc");
  EXPECT_EQ(spec.option("delay"), "2");
  EXPECT_EQ(spec.option("missing"), "");
  EXPECT_EQ(spec.path, "");
  EXPECT_EQ(parse_device_spec("disk:/A/b").path, "/A/b");
}

struct Bad {
  std::string_view text;
  std::string_view why;
};
constexpr std::string_view name_rule = "a backend name consists of letters, digits and '_'";
constexpr std::string_view number_rule = "the text after ':' is not a device number";
constexpr std::string_view option_rule = "an option is written key=value";
constexpr std::string_view key_rule = "an option key consists of letters, digits and '_'";

TEST(DeviceSpec, RefusesWhatIsMalformedAndSaysWhy) {
  for (const Bad& bad : {
           Bad{"", "it is empty"},
           {" ", name_rule},
           {" host", name_rule},
           {"host ", name_rule},
           {"host\n", name_rule},
           {":", name_rule},
           {":0", name_rule},
           {"?", name_rule},
           {"?a=1", name_rule},
           {"ho-st", name_rule},
           {"h\xC3\xB6st", name_rule},
           {"host/0", name_rule},
           {"cuda:", number_rule},
           {"cuda:x", number_rule},
           {"cuda:1x", number_rule},
           {"cuda:1 ", number_rule},
           {"cuda: 1", number_rule},
           {"cuda:-1", number_rule},
           {"cuda:+1", number_rule},
           {"cuda:1.0", number_rule},
           {"cuda:0x1", number_rule},
           {"cuda:4294967296", number_rule},
           {"cuda:99999999999999999999", number_rule},
           {"cuda:1:2", number_rule},
           {"cuda:?a=1", number_rule},
           {"host?", option_rule},
           {"host?threads", option_rule},
           {"host?threads=", option_rule},
           {"host?threads=1&", option_rule},
           {"host?&threads=1", option_rule},
           {"host?a=1&&b=2", option_rule},
           {"host?=1", key_rule},
           {"host?a b=1", key_rule},
           {"host??a=1", key_rule},
           {"host?a=1&a=2", "an option appears twice"},
           {"host?a=1&A=1", "an option appears twice"},
           {"disk", "'disk:' needs a path"},
           {"disk:", "'disk:' needs a path"},
           {"disk?a=1", "'disk:' needs a path"},
           {std::string_view("host\0", 5), "it contains a zero byte"},
           {std::string_view("disk:/a\0b", 9), "it contains a zero byte"},
           {std::string_view("\0", 1), "it contains a zero byte"},
       }) {
    const Result<DeviceSpec> refused = try_parse_device_spec(bad.text);
    ASSERT_FALSE(refused) << "'" << bad.text << "'";
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
    EXPECT_EQ(refused.failure().string("spec"), bad.text);
    EXPECT_EQ(refused.failure().string("why"), bad.why) << "'" << bad.text << "'";
  }
  EXPECT_THROW(static_cast<void>(parse_device_spec("cuda:x")), InvalidDevice);
}

TEST(DeviceSpec, SaysWhatIsWrongWithALongOneToo) {
  const std::string long_name(5000, 'x');
  const std::string long_number = "cuda:" + std::string(4000, '1');
  EXPECT_TRUE(try_parse_device_spec(std::string(4096, 'x')));
  EXPECT_EQ(try_parse_device_spec(long_name).failure().string("why"),
            "it is longer than 4096 bytes");
  const Failure failure = try_parse_device_spec(long_number).failure();
  EXPECT_EQ(failure.string("why"), number_rule);
  EXPECT_TRUE(failure.string("spec")->starts_with("cuda:111"));
  EXPECT_TRUE(failure.text().ends_with("Write a spec such as host, cuda:0 or sim:0?seed=7."));
}

}  // namespace
}  // namespace tern
