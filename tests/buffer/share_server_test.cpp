#include "buffer/share_server.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "buffer/share_client.hpp"
#include "support/forked_child.hpp"
#include "support/no_descriptors.hpp"
#include "support/open_descriptors.hpp"
#include "support/refused.hpp"
#include "support/share_memory_file.hpp"
#include "support/thread.hpp"

namespace tern::share {
namespace {

using namespace std::chrono_literals;
using State = Received::State;

/// Long enough for a thread to answer, if it ever does.
constexpr auto answer_limit = 20s;

struct ShareServer : testing::Test {
  [[nodiscard]] Address add() const {
    return server
        ->try_add(test::share_memory_file(4096),
                  {.bytes = 4096, .elements = 10, .dtype = DType::f32, .backend = "host"})
        .value();
  }
  [[nodiscard]] static Client open(const Address& address) {
    return Client::try_open(address, answer_limit, {}).value();
  }
  [[nodiscard]] Result<void> acquire(const Address& address, Timeout timeout = answer_limit) const {
    return server->try_acquire(address.id, timeout, {});
  }
  static void expect_turn(Client& client) { EXPECT_TRUE(client.try_acquire(answer_limit, {})); }
  static void expect_no_turn(Client& client) {
    test::refused(client.try_acquire(0ms, {}), ErrorCode::timeout);
  }

  std::shared_ptr<Server> server = Server::try_get().value();
};

TEST_F(ShareServer, IsOneForTheProcessAndEndsWithItsLastHolder) {
  EXPECT_EQ(Server::try_get().value(), server);
  server.reset();
  const std::size_t before = test::open_descriptors();
  std::shared_ptr<Server> next = Server::try_get().value();
  EXPECT_GT(test::open_descriptors(), before);
  next.reset();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(ShareServer, TellsImportersWhatTheyOpen) {
  const Address address = add();
  const Client client = open(address);
  EXPECT_EQ(client.bytes(), 4096u);
  EXPECT_EQ(client.elements(), 10u);
  EXPECT_EQ(client.dtype(), DType::f32);
  EXPECT_STREQ(client.backend(), "host");
  EXPECT_EQ(lseek(client.memory(), 0, SEEK_END), 4096);
  EXPECT_EQ(server->importers(address.id), 1u);
}

TEST_F(ShareServer, RefusesWrongSecretsAndUnknownIds) {
  const Address right = add();
  Address wrong = right;
  wrong.secret.back() ^= 1;
  EXPECT_EQ(
      test::refused(Client::try_open(wrong, answer_limit, {}), ErrorCode::not_found).number("id"),
      right.id);
  wrong = right;
  ++wrong.id;
  test::refused(Client::try_open(wrong, answer_limit, {}), ErrorCode::not_found);
  server->remove(right.id);
  test::refused(Client::try_open(right, answer_limit, {}), ErrorCode::not_found);
}

TEST_F(ShareServer, GivesEachImporterOneTurnPerRound) {
  const Address address = add();
  Client a = open(address), b = open(address);
  expect_no_turn(a);
  server->publish(address.id);
  expect_turn(a);
  expect_turn(b);
  a.give_back();
  expect_no_turn(a);
  test::refused(acquire(address, 1ms), ErrorCode::timeout);
  b.give_back();
  EXPECT_TRUE(acquire(address));
  expect_no_turn(b);
  server->publish(address.id);
  expect_turn(a);
  expect_turn(b);
}

TEST_F(ShareServer, WaitsForAtLeastOneImporter) {
  const Address address = add();
  server->publish(address.id);
  const Failure failure = test::refused(acquire(address, 1ms), ErrorCode::timeout);
  EXPECT_EQ(failure.number("importers"), 0u);
  EXPECT_EQ(failure.number("returns"), 0u);
  // Opened after the round began, and still part of it.
  Client late = open(address);
  expect_turn(late);
  late.give_back();
  EXPECT_TRUE(acquire(address));
}

TEST_F(ShareServer, DoesNotWaitForImportersThatLeave) {
  const Address address = add();
  Client a = open(address);
  {
    Client b = open(address);
    server->publish(address.id);
    expect_turn(a);
    expect_turn(b);
    a.give_back();
    b.leave();
  }
  EXPECT_TRUE(acquire(address));
}

TEST_F(ShareServer, NamesTheImporterThatEndedDuringItsTurn) {
  const Address address = add();
  {
    Client lost = open(address);
    server->publish(address.id);
    expect_turn(lost);
  }
  const Failure failure = test::refused(acquire(address), ErrorCode::peer_lost);
  EXPECT_EQ(failure.number("pid"), static_cast<std::uint64_t>(getpid()));
  // Said once; the exporter has the turn, and can go on.
  server->publish(address.id);
  Client next = open(address);
  expect_turn(next);
  next.give_back();
  EXPECT_TRUE(acquire(address));
}

TEST_F(ShareServer, DoesNotWaitForeverIfTheLastImporterEndedBetweenItsTurns) {
  const Address address = add();
  { const Client gone = open(address); }
  while (server->importers(address.id) != 0) std::this_thread::yield();
  server->publish(address.id);
  test::refused(acquire(address), ErrorCode::peer_lost);
  {
    const Client gone = open(address);
    server->publish(address.id);
  }
  const Failure failure = test::refused(acquire(address), ErrorCode::peer_lost);
  EXPECT_EQ(failure.number("pid"), static_cast<std::uint64_t>(getpid()));
  // The exporter has the turn. An importer that left on purpose is no reason to stop waiting.
  server->publish(address.id);
  open(address).leave();
  test::refused(acquire(address, 1ms), ErrorCode::timeout);
  Client next = open(address);
  expect_turn(next);
  next.give_back();
  EXPECT_TRUE(acquire(address));
}

TEST_F(ShareServer, TellsImportersThatAnExportIsClosed) {
  const Address address = add();
  Client client = open(address);
  server->remove(address.id);
  const Failure closed = test::refused(client.try_acquire(answer_limit, {}), ErrorCode::peer_lost);
  EXPECT_NE(closed.text().find("has closed"), std::string::npos) << closed.text();
  EXPECT_EQ(closed.number("pid"), address.pid);
  test::refused(client.try_acquire({}, {}), ErrorCode::peer_lost);
  test::refused(acquire(address), ErrorCode::not_found);
  server->publish(address.id);  // by a host function that was late
}

TEST_F(ShareServer, HasALimitOfImporters) {
  const Address address = add();
  std::vector<Client> clients;
  for (std::size_t i = 0; i < Server::max_importers; ++i) clients.push_back(open(address));
  const Failure failure =
      test::refused(Client::try_open(address, answer_limit, {}), ErrorCode::capacity);
  EXPECT_EQ(failure.number("max"), Server::max_importers);
  clients.pop_back();
  // The thread learns of the end by and by.
  while (server->importers(address.id) == Server::max_importers) std::this_thread::yield();
  EXPECT_TRUE(Client::try_open(address, answer_limit, {}));
}

TEST_F(ShareServer, DropsConnectionsThatBreakTheProtocol) {
  const Address address = add();
  const Message open_it = {.kind = MessageKind::open, .id = address.id, .secret = address.secret};
  const std::vector<std::vector<Message>> wrong = {
      {{.kind = MessageKind::acquire}},  // nothing is open
      {{.kind = MessageKind::give_back}},
      {{.kind = static_cast<MessageKind>(99)}},     // no such message
      {{.kind = MessageKind::granted}},             // of an exporter
      {open_it, open_it},                           // twice
      {open_it, {.kind = MessageKind::give_back}},  // without the turn
      {open_it, {.kind = MessageKind::acquire}, {.kind = MessageKind::acquire}}};
  const std::size_t before = test::open_descriptors();
  for (const std::vector<Message>& messages : wrong) {
    const Socket socket = try_connect(address, {}).value();
    for (const Message& message : messages) static_cast<void>(send(socket, message));
    State last = State::nothing;
    Refusal refusal = Refusal::none;
    while (last != State::end) {
      const Received received = receive(socket, 20'000);
      ASSERT_NE(received.state, State::nothing);
      last = received.state;
      if (last == State::message) refusal = received.message.refusal;
    }
    EXPECT_EQ(refusal, Refusal::malformed);
  }
  while (server->importers(address.id) != 0) std::this_thread::yield();
  EXPECT_TRUE(Client::try_open(address, answer_limit, {}));
  while (server->importers(address.id) != 0) std::this_thread::yield();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(ShareServer, WaitsForADescriptorForTheNextConnection) {
  const Address address = add();
  Client first = open(address);
  Socket waiting;
  {
    // The connection is made, and the server has no descriptor to accept it.
    waiting = try_connect(address, {}).value();
    const test::NoDescriptors none;
    server->publish(address.id);
    expect_turn(first);
  }
  ASSERT_TRUE(
      send(waiting, {.kind = MessageKind::open, .id = address.id, .secret = address.secret}));
  EXPECT_EQ(receive(waiting, 20'000).message.kind, MessageKind::accepted);
}

TEST_F(ShareServer, CannotBeStartedWithoutDescriptors) {
  server.reset();
  const test::NoDescriptors none;
  EXPECT_EQ(test::refused(Server::try_get(), ErrorCode::driver).string("call"), "socket");
}

TEST_F(ShareServer, IsNotTheServerOfAForkedChild) {
  if (!test::children_can_start_threads || !test::children_can_allocate) {
    GTEST_SKIP() << "the child starts a thread";
  }
  const Address address = add();
  EXPECT_EQ(test::in_a_forked_child([&] {
              // The parent still answers, and the child has a server of its own.
              Result<Client> client = Client::try_open(address, answer_limit, {});
              Result<std::shared_ptr<Server>> own = Server::try_get();
              if (!client || !own || *own == server) return false;
              const Result<Address> made = (*own)->try_add(
                  test::share_memory_file(4096), {.bytes = 4096, .elements = 1, .backend = "host"});
              const bool is_own = made && made->pid == static_cast<std::uint32_t>(getpid()) &&
                                  made->socket != address.socket &&
                                  Client::try_open(*made, answer_limit, {});
              server.reset();
              return is_own;
            }),
            0);
  EXPECT_TRUE(Client::try_open(address, answer_limit, {}));
}

}  // namespace
}  // namespace tern::share
