#include "bench/instruction_count.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

// The parts that depend on the architecture: the instruction that stops a traced thread, its
// encoding, and how to decode an instruction.
#if defined(__aarch64__)
#define TERN_BENCH_STOP() asm volatile("brk #0x5445" ::: "memory")
#elif defined(__x86_64__)
#define TERN_BENCH_STOP() asm volatile("int3" ::: "memory")
#else
#define TERN_BENCH_STOP() static_cast<void>(0)
#endif

namespace tern::bench {
namespace {

constexpr std::size_t longest_instruction = 16;

#if defined(__aarch64__)

constexpr bool can_count = true;
using Registers = user_regs_struct;

std::uint32_t word_of(const unsigned char* code) noexcept {
  std::uint32_t word = 0;
  std::memcpy(&word, code, sizeof(word));
  return word;
}
unsigned long long& counter_of(Registers& registers) noexcept { return registers.pc; }
bool is_stop(const unsigned char* code) noexcept { return word_of(code) == 0xd42a88a0; }
/// After a stop, the program counter is at the stop instruction.
constexpr std::uint64_t stop_bytes = 4, passed_stop_bytes = 0;
/// Returns whether the instruction is an exclusive load. Single-stepping between it and its
/// exclusive store makes the store fail every time.
bool is_unsteppable(const unsigned char* code) noexcept {
  const std::uint32_t word = word_of(code);
  const bool is_single = (word & 0x3fe00000) == 0x08400000;  // ldxr, ldaxr
  const bool is_pair = (word & 0xbfe00000) == 0x88600000;    // ldxp, ldaxp
  return is_single || is_pair;
}

#elif defined(__x86_64__)

constexpr bool can_count = true;
using Registers = user_regs_struct;

unsigned long long& counter_of(Registers& registers) noexcept { return registers.rip; }
bool is_stop(const unsigned char* code) noexcept { return *code == 0xcc; }
/// After a stop, the program counter is behind the stop instruction.
constexpr std::uint64_t stop_bytes = 1, passed_stop_bytes = 1;
bool is_unsteppable(const unsigned char*) noexcept { return false; }

#else

constexpr bool can_count = false;
struct Registers {
  unsigned long long counter = 0;
};
unsigned long long& counter_of(Registers& registers) noexcept { return registers.counter; }
bool is_stop(const unsigned char*) noexcept { return true; }
constexpr std::uint64_t stop_bytes = 0, passed_stop_bytes = 0;
bool is_unsteppable(const unsigned char*) noexcept { return false; }

#endif

/// A message of the child: first that it is ready, then the counts.
struct Message {
  enum class Kind : std::uint8_t { ready, counted, refused, unsteppable } kind = Kind::ready;
  int os_code = 0;
  std::uint64_t instructions = 0;
  std::uint64_t atomics = 0;
};

/// The child. It was forked from a process with threads, so it may only make system calls.
class Stepper {
 public:
  Stepper(pid_t thread, int out) : thread_(thread), out_(out) {}

  void run() noexcept {
    if (!trace(PTRACE_SEIZE)) return send(Message::Kind::refused);
    send(Message::Kind::ready);
    if (!wait_for_trap(PTRACE_CONT)) return;
    pass_stop(stop_bytes - passed_stop_bytes);
    const Message::Kind end = step_to_stop();
    if (end == Message::Kind::counted) {
      pass_stop(stop_bytes);
    } else if (trace(PTRACE_CONT) && wait_for_trap(PTRACE_CONT)) {
      // Skip the second stop: without a tracer it would kill the thread.
      pass_stop(stop_bytes - passed_stop_bytes);
    }
    send(end);
    trace(PTRACE_DETACH);
  }

 private:
  bool trace(__ptrace_request request, std::uintptr_t argument = 0, void* data = nullptr) noexcept {
    return ptrace(request, thread_, argument, data) == 0;
  }

  Message::Kind step_to_stop() noexcept {
    for (;;) {
      unsigned char code[longest_instruction] = {};
      if (!read_registers() || !read_code(code)) return Message::Kind::refused;
      if (is_stop(code)) return Message::Kind::counted;
      if (is_unsteppable(code)) return Message::Kind::unsteppable;
      ++message_.instructions;
      message_.atomics += is_atomic_instruction(code) ? 1u : 0u;
      if (!trace(PTRACE_SINGLESTEP) || !wait_for_trap(PTRACE_SINGLESTEP)) {
        return Message::Kind::refused;
      }
    }
  }

  /// Passes other signals on to the thread and continues it.
  bool wait_for_trap(__ptrace_request go_on) noexcept {
    for (;;) {
      int status = 0;
      if (waitpid(thread_, &status, __WALL) != thread_ || !WIFSTOPPED(status)) return false;
      const auto signal = static_cast<std::uintptr_t>(WSTOPSIG(status));
      if (signal == SIGTRAP) return true;
      if (!trace(go_on, 0, reinterpret_cast<void*>(signal))) return false;
    }
  }
  void pass_stop(std::uint64_t bytes) noexcept {
    if (!read_registers()) return;
    counter_of(registers_) += bytes;
    iovec part = {&registers_, sizeof(registers_)};
    trace(PTRACE_SETREGSET, NT_PRSTATUS, &part);
  }
  bool read_registers() noexcept {
    iovec part = {&registers_, sizeof(registers_)};
    return trace(PTRACE_GETREGSET, NT_PRSTATUS, &part);
  }
  bool read_code(unsigned char (&code)[longest_instruction]) noexcept {
    for (std::size_t i = 0; i < longest_instruction; i += sizeof(long)) {
      errno = 0;
      const long word = ptrace(PTRACE_PEEKTEXT, thread_, counter_of(registers_) + i, nullptr);
      // The instruction may be the last one of its page, so reading further fails.
      if (errno != 0) return i > 0;
      std::memcpy(code + i, &word, sizeof(word));
    }
    return true;
  }
  void send(Message::Kind kind) noexcept {
    message_.kind = kind;
    message_.os_code = errno;
    static_cast<void>(!write(out_, &message_, sizeof(message_)));
  }

  const pid_t thread_;
  const int out_;
  Registers registers_ = {};
  Message message_ = {};
};

/// Calls the function between two stops. There must be no other code between them.
[[gnu::noinline]] void run_between_stops(const std::function<void()>& function) {
  TERN_BENCH_STOP();
  function();
  TERN_BENCH_STOP();
}

std::string text_of(const Message& message) {
  if (message.kind == Message::Kind::unsteppable) {
    return "the processor has no atomic instructions, only pairs that cannot be stepped through";
  }
  return fmt::format("tracing is not allowed here: {}", std::strerror(message.os_code));
}

}  // namespace

#if defined(__aarch64__)

bool is_atomic_instruction(const unsigned char* code) noexcept {
  const std::uint32_t word = word_of(code);
  const bool is_load_acquire = (word & 0x3ffffc00) == 0x38bfc000;  // ldapr, in the same group
  const bool is_operation = (word & 0x3f200c00) == 0x38200000;     // ldadd, ldset, swp, ...
  const bool is_compare = (word & 0x3fa07c00) == 0x08a07c00;       // cas
  const bool is_compare_pair = (word & 0xbfa07c00) == 0x08207c00;  // casp
  return (is_operation && !is_load_acquire) || is_compare || is_compare_pair;
}

#elif defined(__x86_64__)

bool is_atomic_instruction(const unsigned char* code) noexcept {
  std::size_t at = 0;
  const auto is_prefix = [](unsigned char byte) {
    constexpr unsigned char prefixes[] = {0x26, 0x2e, 0x36, 0x3e, 0x64,
                                          0x65, 0x66, 0x67, 0xf2, 0xf3};
    return std::memchr(prefixes, byte, sizeof(prefixes)) != nullptr;
  };
  while (at < longest_instruction && is_prefix(code[at])) ++at;
  if (code[at] == 0xf0) return true;  // lock prefix
  if ((code[at] & 0xf0) == 0x40) ++at;
  const bool is_exchange = code[at] == 0x86 || code[at] == 0x87;
  return is_exchange &&
         (code[at + 1] & 0xc0) != 0xc0;  // xchg with memory, which needs no lock prefix
}

#else

bool is_atomic_instruction(const unsigned char*) noexcept { return false; }

#endif

InstructionCount count_instructions(const std::function<void()>& function) {
  const auto refuse = [&](const std::string& why) {
    function();
    return InstructionCount{.refusal = why};
  };
  if (!can_count) return refuse("instructions of this kind of machine are not known here");
  int pipe_ends[2] = {};
  if (pipe(pipe_ends) != 0) return refuse(std::strerror(errno));
  const auto thread = static_cast<pid_t>(syscall(SYS_gettid));
  // On some systems only a parent may trace a process. Allow the child to do it.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const pid_t child = fork();
  if (child < 0) return refuse(std::strerror(errno));
  if (child == 0) {
    Stepper(thread, pipe_ends[1]).run();
    _exit(0);
  }
  close(pipe_ends[1]);
  const auto receive = [&] {
    Message message;
    const bool is_whole = read(pipe_ends[0], &message, sizeof(message)) == sizeof(message);
    if (!is_whole) message.kind = Message::Kind::refused;
    return message;
  };
  Message message = receive();
  const bool is_traced = message.kind == Message::Kind::ready;
  if (is_traced) {
    run_between_stops(function);
    message = receive();
  }
  close(pipe_ends[0]);
  waitpid(child, nullptr, 0);
  prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  if (message.kind == Message::Kind::counted) return {message.instructions, message.atomics};
  if (!is_traced) return refuse(text_of(message));
  return InstructionCount{.refusal = text_of(message)};
}

void add_instructions(Context& context, const std::string& name,
                      const std::function<void()>& function) {
  const InstructionCount count = count_instructions(function);
  if (!count.refusal.empty()) return;
  context.add({.name = name + ", instructions",
               .value = static_cast<double>(count.instructions),
               .better = Better::lower});
}

}  // namespace tern::bench
