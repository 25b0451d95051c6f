#include "buffer/share_socket.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "support/forked_child.hpp"
#include "support/no_descriptors.hpp"
#include "support/open_descriptors.hpp"
#include "support/refused.hpp"
#include "support/share_memory_file.hpp"

namespace tern::share {
namespace {

using State = Received::State;

constexpr int long_enough_ms = 20'000;

struct ShareSocket : testing::Test {
  ShareSocket() {
    EXPECT_TRUE(try_fill_random(&to.socket, sizeof to.socket));
    listener = try_listen(to.pid, to.socket).value();
    near = try_connect(to, {}).value();
    far = try_accept(listener, pid).value();
  }
  /// Sends any bytes, with any number of descriptors.
  void send_raw(const void* data, std::size_t bytes, std::size_t descriptors = 0) {
    iovec part = {const_cast<void*>(data), bytes};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(16 * sizeof(int))> control = {};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (descriptors > 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
      cmsghdr* const attached = CMSG_FIRSTHDR(&header);
      attached->cmsg_level = SOL_SOCKET;
      attached->cmsg_type = SCM_RIGHTS;
      attached->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      const std::vector<int> numbers(descriptors, STDIN_FILENO);
      std::memcpy(CMSG_DATA(attached), numbers.data(), descriptors * sizeof(int));
    }
    ASSERT_EQ(sendmsg(near.get(), &header, 0), static_cast<ssize_t>(bytes));
  }

  Address to = {.pid = static_cast<std::uint32_t>(getpid())};
  Socket listener, near, far;
  std::uint32_t pid = 0;
};

TEST_F(ShareSocket, CarriesMessagesAndDescriptors) {
  EXPECT_EQ(pid, static_cast<std::uint32_t>(getpid()));
  const Descriptor file = test::share_memory_file(4096);
  ASSERT_TRUE(send(near, {.kind = MessageKind::open, .id = 5, .bytes = 77}));
  ASSERT_TRUE(send(near, {.kind = MessageKind::accepted, .id = 6}, file.get()));
  Received received = receive(far, long_enough_ms);
  ASSERT_EQ(received.state, State::message);
  EXPECT_EQ(received.message.kind, MessageKind::open);
  EXPECT_EQ(received.message.id, 5u);
  EXPECT_EQ(received.message.bytes, 77u);
  EXPECT_FALSE(received.descriptor);
  received = receive(far, long_enough_ms);
  ASSERT_EQ(received.state, State::message);
  EXPECT_EQ(received.message.id, 6u);
  ASSERT_TRUE(received.descriptor);
  EXPECT_NE(received.descriptor.get(), file.get());
  EXPECT_EQ(lseek(received.descriptor.get(), 0, SEEK_END), 4096);
  EXPECT_NE(fcntl(received.descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(receive(far, 0).state, State::nothing);
}

TEST_F(ShareSocket, TellsTheEndOfTheOtherSide) {
  ASSERT_TRUE(send(near, {.kind = MessageKind::leave}));
  near = Socket();
  EXPECT_EQ(receive(far, long_enough_ms).message.kind, MessageKind::leave);
  EXPECT_EQ(receive(far, long_enough_ms).state, State::end);
  EXPECT_FALSE(send(far, {.kind = MessageKind::granted}));
  EXPECT_EQ(receive(Socket(), long_enough_ms).state, State::end);
}

TEST_F(ShareSocket, ReadsTheLastMessageOfASideThatDidNotReadEverything) {
  ASSERT_TRUE(send(near, {.kind = MessageKind::acquire}));
  ASSERT_TRUE(send(far, {.kind = MessageKind::closed}));
  far = Socket();
  EXPECT_EQ(receive(near, long_enough_ms).message.kind, MessageKind::closed);
  EXPECT_EQ(receive(near, long_enough_ms).state, State::end);
}

TEST_F(ShareSocket, RefusesMalformedMessagesAndClosesTheirDescriptors) {
  const std::size_t before = test::open_descriptors();
  const Message right = {.kind = MessageKind::acquire};
  Message wrong_magic = right;
  ++wrong_magic.magic;
  std::array<std::byte, 2 * sizeof(Message)> large = {};
  std::memcpy(large.data(), &right, sizeof right);
  send_raw(&right, sizeof right - 1, 1);       // truncated
  send_raw(&right, 1);                         // truncated
  send_raw(large.data(), large.size(), 1);     // too long
  send_raw(&wrong_magic, sizeof wrong_magic);  // another protocol
  send_raw(&right, sizeof right, 2);           // too many descriptors
  send_raw(&right, sizeof right, 16);
  for (int i = 0; i < 6; ++i) {
    const Received received = receive(far, long_enough_ms);
    EXPECT_EQ(received.state, State::malformed) << i;
    EXPECT_FALSE(received.descriptor);
  }
  send_raw(&right, sizeof right);
  EXPECT_EQ(receive(far, long_enough_ms).state, State::message);
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(ShareSocket, NeverBlocksASender) {
  int sent = 0;
  while (send(near, {.kind = MessageKind::acquire})) ASSERT_LT(++sent, 1'000'000);
  EXPECT_GT(sent, 0);
  EXPECT_EQ(receive(far, 0).state, State::message);
}

TEST_F(ShareSocket, IsClosedInAForkedChild) {
  const int number = near.get();
  EXPECT_EQ(test::in_a_forked_child([&] {
              return near.get() == -1 && fcntl(number, F_GETFD) == -1 &&
                     receive(near, -1).state == State::end;
            }),
            0);
  EXPECT_EQ(near.get(), number);
  EXPECT_TRUE(send(near, {.kind = MessageKind::acquire}));
  EXPECT_EQ(receive(far, long_enough_ms).state, State::message);
}

TEST_F(ShareSocket, NamesTheProcessThatDoesNotListen) {
  listener = Socket();
  EXPECT_EQ(test::refused(try_connect(to, {}), ErrorCode::not_found).number("pid"), to.pid);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  to.pid = static_cast<std::uint32_t>(child);
  EXPECT_EQ(test::refused(try_connect(to, {}), ErrorCode::peer_lost).number("pid"), to.pid);
}

TEST_F(ShareSocket, ConnectsOnlyProcessesOfOneUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  if (!test::children_can_allocate) GTEST_SKIP() << "the child makes a list of sockets";
  EXPECT_EQ(
      test::in_a_forked_child([&] {
        // The child has no socket of the parent any more.
        Address own = {.pid = static_cast<std::uint32_t>(getpid()), .socket = 1};
        const Socket mine = try_listen(own.pid, own.socket).value();
        if (seteuid(65534) != 0) return false;
        const Result<Socket> refused = try_connect(own, {});
        if (refused || refused.failure().code() != ErrorCode::unsupported) return false;
        if (refused.failure().number("owner") != 0 || refused.failure().number("user") != 65534) {
          return false;
        }
        // The exporter refuses as well.
        std::uint32_t peer = 0;
        seteuid(0);
        const Result<Socket> accepted = try_accept(mine, peer);
        return accepted && !*accepted;
      }),
      0);
}

// A sanitizer needs descriptors to check an access to the fixture.
TEST_F(ShareSocket, FailsWithoutDescriptors) {
  const Address there = to;
  const test::NoDescriptors none;
  EXPECT_EQ(test::refused(try_listen(1, 2), ErrorCode::driver).string("call"), "socket");
  EXPECT_EQ(test::refused(try_connect(there, {}), ErrorCode::driver).string("call"), "socket");
}

TEST_F(ShareSocket, LosesADescriptorThatThereIsNoRoomForAndSaysSo) {
  ASSERT_TRUE(send(near, {.kind = MessageKind::accepted}, STDIN_FILENO));
  auto& end = far;
  const test::NoDescriptors none;
  EXPECT_EQ(receive(end, long_enough_ms).state, State::malformed);
}

}  // namespace
}  // namespace tern::share
