#include "language/host_compiler.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace tern::language {
namespace {

using Bytes = std::vector<std::byte>;

HostCompiler compiler() { return try_find_host_compiler("", "").value(); }

std::string returning(int value) {
  return "extern \"C\" __attribute__((visibility(\"default\"))) int f() { return " +
         std::to_string(value) + "; }";
}

int call(const HostCode& code) { return reinterpret_cast<int (*)()>(code.find("f"))(); }

/// Writes a program that is a script.
std::string script(const test::TemporaryFolder& folder, const std::string& name,
                   std::string_view text) {
  const std::string path = folder.write(name, std::as_bytes(std::span(text)));
  EXPECT_EQ(chmod(path.c_str(), 0700), 0);
  return path;
}

Bytes bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

TEST(HostCompiler, CompilesAndLoadsAText) {
  const Result<Bytes> object = try_compile_for_host(compiler(), "seven", returning(7));
  ASSERT_TRUE(object) << object.failure().text();
  const Result<HostCode> code = try_load_host_code("seven", *object);
  ASSERT_TRUE(code) << code.failure().text();
  EXPECT_TRUE(code->is_loaded());
  EXPECT_EQ(call(*code), 7);
  EXPECT_EQ(code->find("g"), nullptr);
}

TEST(HostCompiler, LoadsEachTextThoughDescriptorsAreUsedAgain) {
  const Bytes seven = try_compile_for_host(compiler(), "f", returning(7)).value();
  const Bytes eight = try_compile_for_host(compiler(), "f", returning(8)).value();
  std::vector<HostCode> loaded;
  for (int i = 0; i < 20; ++i) {
    loaded.push_back(try_load_host_code("f", i % 2 == 0 ? seven : eight).value());
  }
  for (std::size_t i = 0; i < loaded.size(); ++i) EXPECT_EQ(call(loaded[i]), i % 2 == 0 ? 7 : 8);
}

TEST(HostCompiler, KeepsCodeLoadedAsLongAsACopyExists) {
  HostCode kept;
  {
    const HostCode first =
        try_load_host_code("f", try_compile_for_host(compiler(), "f", returning(9)).value())
            .value();
    kept = first;
  }
  EXPECT_EQ(call(kept), 9);
  EXPECT_FALSE(HostCode().is_loaded());
  EXPECT_EQ(HostCode().find("f"), nullptr);
}

TEST(HostCompiler, ReportsTheFirstErrorWithTheLineOfTheKernel) {
  const Result<Bytes> object = try_compile_for_host(
      compiler(), "wrong", "#line 12 \"kernel wrong\"\nint f() { return unknown; }\nbad again");
  ASSERT_FALSE(object);
  EXPECT_EQ(object.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(object.failure().string("kernel"), "wrong");
  const std::string text = object.failure().text();
  EXPECT_NE(text.find("kernel wrong:12:"), text.npos) << text;
  EXPECT_NE(text.find("unknown"), text.npos) << text;
  EXPECT_EQ(text.find('\n'), text.npos) << text;
}

TEST(HostCompiler, LeavesNoFiles) {
  const auto folders = [] {
    std::vector<std::string> names;
    for (const auto& item : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      names.push_back(std::filesystem::read_symlink(item.path(), ignored).string());
    }
    return std::count_if(names.begin(), names.end(), [](const std::string& name) {
      return name.find("tern-kernel") != name.npos;
    });
  };
  const test::TemporaryFolder folder;
  // The compiler sees its folder. This one writes down its name, and makes nothing.
  const HostCompiler noting = {
      script(folder, "noting",
             "#!/bin/sh\nfor a; do case $a in */kernel.cpp) dirname \"$a\" > " + folder / "seen" +
                 "; stat -c %a \"$(dirname \"$a\")\" > " + folder / "mode" +
                 ";; esac; done\nexit 1\n"),
      "noting"};
  EXPECT_FALSE(try_compile_for_host(noting, "f", returning(1)));
  std::string seen(200, '\0'), mode(8, '\0');
  const int file = open((folder / "seen").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  seen.resize(static_cast<std::size_t>(std::max<ssize_t>(read(file, seen.data(), 200), 1)) - 1);
  close(file);
  const int mode_file = open((folder / "mode").c_str(), O_RDONLY | O_CLOEXEC);
  mode.resize(static_cast<std::size_t>(std::max<ssize_t>(read(mode_file, mode.data(), 8), 0)));
  close(mode_file);
  EXPECT_EQ(mode, "700\n");
  EXPECT_NE(seen.find("/tern-"), seen.npos);
  EXPECT_FALSE(std::filesystem::exists(seen)) << seen;
  const auto before = folders();
  const HostCode code =
      try_load_host_code("f", try_compile_for_host(compiler(), "f", returning(1)).value()).value();
  EXPECT_EQ(folders(), before);
}

TEST(HostCompiler, SaysWhatToInstallWithoutACompiler) {
  const test::TemporaryFolder empty;
  const Result<HostCompiler> none = try_find_host_compiler("", empty / "");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::unsupported);
  EXPECT_NE(none.failure().text().find("Install g++ or clang++"), std::string::npos);
  const Result<HostCompiler> wrong = try_find_host_compiler("/no/such/g++", "/usr/bin");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(wrong.failure().string("value"), "/no/such/g++");
}

TEST(HostCompiler, IsTheFirstProgramOfItsNameInThePath) {
  const test::TemporaryFolder first, second;
  first.write("c++", {});  // not executable
  const std::string made = script(second, "c++", "#!/bin/sh\n");
  const std::string path = "relative:" + first / "" + ":" + second / "";
  EXPECT_TRUE(std::filesystem::equivalent(try_find_host_compiler("", path)->path, made));
  const std::string relative = std::filesystem::relative(second / "");
  EXPECT_FALSE(try_find_host_compiler("c++", relative));
  script(first, "mine", "#!/bin/sh\n");
  EXPECT_TRUE(
      std::filesystem::equivalent(try_find_host_compiler("mine", path)->path, first / "mine"));
}

TEST(HostCompiler, HasAnotherIdentityWhenItIsReplaced) {
  const test::TemporaryFolder folder;
  const std::string path = script(folder, "c++", "#!/bin/sh\n");
  const std::string before = try_find_host_compiler(path, "")->identity;
  EXPECT_EQ(try_find_host_compiler(path, "")->identity, before);
  script(folder, "c++", "#!/bin/sh\n# newer\n");
  EXPECT_NE(try_find_host_compiler(path, "")->identity, before);
}

TEST(HostCompiler, ReportsACompilerThatDoesNotStartOrIsEnded) {
  const test::TemporaryFolder folder;
  const HostCompiler absent = {folder / "absent", "absent"};
  EXPECT_EQ(try_compile_for_host(absent, "f", "").failure().code(), ErrorCode::driver);
  const HostCompiler killed = {script(folder, "killed", "#!/bin/sh\nkill -9 $$\n"), "killed"};
  const Result<Bytes> ended = try_compile_for_host(killed, "f", "");
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.failure().code(), ErrorCode::driver);
  EXPECT_EQ(ended.failure().number("code"), 9u);
  const HostCompiler silent = {script(folder, "silent", "#!/bin/sh\nexit 0\n"), "silent"};
  EXPECT_EQ(try_compile_for_host(silent, "f", "").failure().string("value"),
            "the compiler gave no reason");
}

TEST(HostCompiler, WorksInAProgramThatIgnoresItsChildren) {
  const test::TemporaryFolder folder;
  const HostCompiler noting = {
      script(folder, "noting",
             "#!/bin/sh\ngrep SigIgn /proc/self/status > " + folder / "signals" + "\nexit 1\n"),
      "noting"};
  struct sigaction before = {}, ignore = {};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(SIGCHLD, &ignore, &before), 0);
  struct sigaction pipe_before = {};
  ASSERT_EQ(sigaction(SIGPIPE, &ignore, &pipe_before), 0);
  const Result<Bytes> object = try_compile_for_host(compiler(), "f", returning(3));
  const Result<Bytes> wrong = try_compile_for_host(compiler(), "f", "wrong");
  EXPECT_FALSE(try_compile_for_host(noting, "f", ""));
  ASSERT_EQ(sigaction(SIGCHLD, &before, nullptr), 0);
  ASSERT_EQ(sigaction(SIGPIPE, &pipe_before, nullptr), 0);
  EXPECT_TRUE(object);
  EXPECT_FALSE(wrong);
  // The compiler has its usual signals. (Some shells change what they do with SIGCHLD themselves.)
  std::string name;
  std::uint64_t ignored = ~std::uint64_t{0};
  std::ifstream(folder / "signals") >> name >> std::hex >> ignored;
  EXPECT_EQ(ignored >> (SIGPIPE - 1) & 1, 0u);
}

TEST(HostCompiler, LoadsNoBytesThatAreNotCode) {
  for (const Bytes& bytes : {Bytes(), bytes_of("not a shared object"), Bytes(4096)}) {
    const Result<HostCode> code = try_load_host_code("f", bytes);
    ASSERT_FALSE(code);
    EXPECT_EQ(code.failure().code(), ErrorCode::bad_format);
  }
}

TEST(HostCompiler, TakesCodeFromTheCache) {
  const test::TemporaryFolder folder;
  const CodeCache cache(folder / "cache", 1 << 20);
  const HostCode first = try_host_code("f", returning(5), cache).value();
  EXPECT_EQ(call(first), 5);
  std::vector<std::filesystem::path> entries;
  for (const auto& item : std::filesystem::directory_iterator(folder / "cache")) {
    entries.push_back(item.path());
  }
  ASSERT_EQ(entries.size(), 1u);
  const auto stored = std::filesystem::last_write_time(entries[0]);
  const auto old = stored - std::chrono::hours(24);
  std::filesystem::last_write_time(entries[0], old);
  EXPECT_EQ(call(try_host_code("f", returning(5), cache).value()), 5);
  // A hit is a use of the entry, and does not replace it.
  EXPECT_GT(std::filesystem::last_write_time(entries[0]), old);
  EXPECT_EQ(call(try_host_code("f", returning(6), cache).value()), 6);
}

TEST(HostCompiler, CompilesAgainIfCodeFromTheCacheDoesNotLoad) {
  const test::TemporaryFolder folder;
  const CodeCache cache(folder / "cache", 1 << 20);
  const std::string text = returning(5);
  const HostCompiler used = try_find_host_compiler().value();
  const CodeKey key = host_code_key(used, text);
  cache.store(key, bytes_of("no shared object"));
  EXPECT_EQ(call(try_host_code("f", text, cache).value()), 5);
  EXPECT_NE(cache.find(key), bytes_of("no shared object"));
}

}  // namespace
}  // namespace tern::language
