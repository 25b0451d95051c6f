#include "language/code_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

#include "core/checksum.hpp"
#include "core/file_limit_signal.hpp"
#include "tern/core/version.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::language {
namespace {

/// What a file begins with. The key and the code follow, and nothing else.
struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t unused;
  std::uint64_t key_bytes;
  std::uint64_t code_bytes;
  std::uint64_t checksum;  // of the whole file, with 0 in place of this field
};
static_assert(sizeof(Header) == 40);
constexpr std::array<char, 8> magic = {'T', 'E', 'R', 'N', 'C', 'O', 'D', 'E'};
constexpr std::uint32_t format_version = 1;

constexpr std::string_view entry_suffix = ".code";
constexpr std::string_view temporary_prefix = "storing-";
/// A process that ended while it stored leaves a temporary file. Nobody stores for this long.
constexpr std::int64_t stale_seconds = 3600;

class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] explicit operator bool() const noexcept { return value_ >= 0; }

 private:
  int value_;
};

/// Returns whether only this user can have written the file or the folder.
bool is_own(const struct stat& about) noexcept {
  return about.st_uid == geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// The texts with their lengths, so that two keys never have one text.
std::string text_of(const CodeKey& key) {
  std::string text;
  for (const std::string_view part : {std::string_view(TERN_VERSION), key.kind, key.options,
                                      key.device, key.compiler, key.text}) {
    text += fmt::format("{}:{}\n", part.size(), part);
  }
  return text;
}

/// The 128-bit FNV-1a hash. Entries contain their key, so a collision costs only time.
std::string name_of(std::string_view key_text) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide prime = (Wide{1} << 88) + 0x13b;
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) | 0x62b821756295c58d;
  for (const char c : key_text) hash = (hash ^ static_cast<unsigned char>(c)) * prime;
  return fmt::format("{:016x}{:016x}{}", static_cast<std::uint64_t>(hash >> 64),
                     static_cast<std::uint64_t>(hash), entry_suffix);
}

/// Opens the folder if it is the user's own.
Descriptor open_folder(const std::string& path) noexcept {
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat about = {};
  if (folder && fstat(folder.get(), &about) == 0 && is_own(about)) return folder;
  return Descriptor(-1);
}

/// Creates the folder and the folders above it that do not exist.
void make_folder(const std::string& path) {
  for (std::size_t slash = 0; slash != path.npos;) {
    slash = path.find('/', slash + 1);
    // Whether this works shows when the folder is opened.
    static_cast<void>(mkdir(path.substr(0, slash).c_str(), 0700));
  }
}

/// Returns the bytes of a file, or nullopt if it is not exactly this long.
std::optional<std::vector<std::byte>> read_all(int file, std::size_t bytes) {
  std::vector<std::byte> read_bytes(bytes);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read(file, read_bytes.data() + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return read_bytes;
}

bool write_all(int file, std::span<const std::byte> bytes) noexcept {
  const FileLimitSignal no_signal;
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

std::uint64_t checksum_of(std::span<const std::byte> file) noexcept {
  Checksum checksum;
  checksum.add(file);
  return checksum.get();
}

std::vector<std::byte> file_of(std::string_view key_text, std::span<const std::byte> code) {
  Header header = {magic, format_version, 0, key_text.size(), code.size(), 0};
  std::vector<std::byte> file(sizeof header + key_text.size() + code.size());
  std::memcpy(file.data(), &header, sizeof header);
  std::memcpy(file.data() + sizeof header, key_text.data(), key_text.size());
  if (!code.empty()) {
    std::memcpy(file.data() + sizeof header + key_text.size(), code.data(), code.size());
  }
  header.checksum = checksum_of(file);
  std::memcpy(file.data(), &header, sizeof header);
  return file;
}

/// Removes all but the code from the bytes of a file. Returns false if the file is not an entry of
/// this key, as it was stored.
bool extract_code(std::vector<std::byte>& file, std::string_view key_text) {
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  const std::uint64_t checksum = std::exchange(header.checksum, 0);
  if (header.magic != magic || header.version != format_version ||
      header.key_bytes != key_text.size() ||
      header.code_bytes != file.size() - sizeof header - key_text.size()) {
    return false;
  }
  std::memcpy(file.data(), &header, sizeof header);
  if (checksum_of(file) != checksum ||
      std::memcmp(file.data() + sizeof header, key_text.data(), key_text.size()) != 0) {
    return false;
  }
  file.erase(file.begin(),
             file.begin() + static_cast<std::ptrdiff_t>(sizeof header + key_text.size()));
  return true;
}

std::optional<std::vector<std::byte>> read_entry(int folder, const std::string& name,
                                                 std::string_view key_text) {
  // Without O_NONBLOCK, a pipe of this name would block the process.
  const Descriptor file(
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    if (errno == ELOOP) unlinkat(folder, name.c_str(), 0);  // a symbolic link is not an entry
    return std::nullopt;
  }
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return std::nullopt;
  std::optional<std::vector<std::byte>> code;
  const auto bytes = static_cast<std::size_t>(about.st_size);
  if (S_ISREG(about.st_mode) && is_own(about) && bytes >= sizeof(Header) + key_text.size()) {
    code = read_all(file.get(), bytes);
    if (code && !extract_code(*code, key_text)) code.reset();
  }
  if (code) {
    futimens(file.get(), nullptr);  // now is the last use
  } else {
    unlinkat(folder, name.c_str(), 0);
  }
  return code;
}

struct Entry {
  std::string name;
  std::uint64_t bytes;
  timespec used;
};

/// Lists the entries, and removes temporary files that no process writes any more.
std::vector<Entry> list_entries(int folder, const timespec& now) {
  std::vector<Entry> entries;
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = copy < 0 ? nullptr : fdopendir(copy);
  if (listing == nullptr) {
    if (copy >= 0) close(copy);
    return entries;
  }
  struct Close {
    DIR* listing;
    ~Close() { closedir(listing); }
  } const close_at_end{listing};
  while (const dirent* item = readdir(listing)) {
    const std::string_view name = item->d_name;
    const bool is_temporary = name.starts_with(temporary_prefix);
    struct stat about = {};
    if ((!is_temporary && !name.ends_with(entry_suffix)) ||
        fstatat(folder, item->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (!is_temporary) {
      entries.push_back(
          {std::string(name), static_cast<std::uint64_t>(about.st_size), about.st_mtim});
    } else if (now.tv_sec - about.st_mtim.tv_sec > stale_seconds) {
      unlinkat(folder, item->d_name, 0);
    }
  }
  return entries;
}

void remove_least_used(int folder, const std::string& kept, const timespec& now,
                       std::uint64_t limit_bytes) {
  std::vector<Entry> entries = list_entries(folder, now);
  std::uint64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  std::ranges::sort(entries, {}, [](const Entry& entry) {
    return std::tuple(entry.used.tv_sec, entry.used.tv_nsec, entry.name);
  });
  for (const Entry& entry : entries) {
    if (total <= limit_bytes) return;
    // The new entry may be as old as the clock of the file system is coarse.
    if (entry.name == kept) continue;
    unlinkat(folder, entry.name.c_str(), 0);
    total -= entry.bytes;
  }
}

/// Creates a file that no other process or thread writes.
std::pair<Descriptor, std::string> make_temporary_file(int folder) {
  static std::atomic<unsigned> count = 0;
  constexpr int max_tries = 100;  // a name may be left from an ended process with our number
  for (int i = 0; i < max_tries; ++i) {
    std::string name = fmt::format("{}{}-{}", temporary_prefix, getpid(), count++);
    Descriptor file(
        openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file || errno != EEXIST) return {std::move(file), std::move(name)};
  }
  return {Descriptor(-1), ""};
}

void write_entry(int folder, const std::string& name, std::span<const std::byte> bytes,
                 std::uint64_t limit_bytes) {
  const auto [file, temporary] = make_temporary_file(folder);
  if (!file) return;
  struct stat about = {};
  // Not synchronised: a file that a crash of the system leaves incomplete has a wrong checksum.
  if (!write_all(file.get(), bytes) || fstat(file.get(), &about) != 0 ||
      renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) {
    unlinkat(folder, temporary.c_str(), 0);
    return;
  }
  remove_least_used(folder, name, about.st_mtim, limit_bytes);
}

}  // namespace

CodeCache::CodeCache(std::string folder, std::uint64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes) {}

const CodeCache& CodeCache::of_process() {
  // Never destroyed: kernels may be compiled while the program ends.
  static const CodeCache& cache = *[] {
    const Result<const Config*> config = try_config();
    if (!config) return new CodeCache("", 0);
    return new CodeCache(cache_folder(**config), (*config)->cache_limit_bytes);
  }();
  return cache;
}

std::string CodeCache::file_name(const CodeKey& key) { return name_of(text_of(key)); }

std::optional<std::vector<std::byte>> CodeCache::find(const CodeKey& key) const noexcept {
  try {
    if (folder_.empty()) return std::nullopt;
    const Descriptor folder = open_folder(folder_);
    if (!folder) return std::nullopt;
    const std::string key_text = text_of(key);
    return read_entry(folder.get(), name_of(key_text), key_text);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

void CodeCache::store(const CodeKey& key, std::span<const std::byte> code) const noexcept {
  try {
    if (folder_.empty()) return;
    const std::string key_text = text_of(key);
    const std::vector<std::byte> bytes = file_of(key_text, code);
    if (bytes.size() > limit_bytes_) return;
    make_folder(folder_);
    const Descriptor folder = open_folder(folder_);
    if (folder) write_entry(folder.get(), name_of(key_text), bytes, limit_bytes_);
  } catch (const std::bad_alloc&) {
    // Nothing is kept.
  }
}

}  // namespace tern::language
