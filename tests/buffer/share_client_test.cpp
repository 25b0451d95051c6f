#include "buffer/share_client.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "support/open_descriptors.hpp"
#include "support/refused.hpp"
#include "support/share_memory_file.hpp"
#include "support/thread.hpp"

namespace tern::share {
namespace {

using namespace std::chrono_literals;

/// An exporter that may answer with anything.
struct ShareClient : testing::Test {
  ShareClient() {
    EXPECT_TRUE(try_fill_random(&address.socket, sizeof address.socket));
    listener = try_listen(address.pid, address.socket).value();
    right.backend = {'h', 'o', 's', 't'};
  }
  /// Opens the export while a thread answers the request.
  Result<Client> open(const std::function<void(const Socket&)>& answer, Timeout timeout = 20s) {
    test::Thread exporter([&] {
      std::uint32_t pid = 0;
      far = try_accept(listener, pid).value();
      const Received request = receive(far, 20'000);
      EXPECT_EQ(request.message.kind, MessageKind::open);
      EXPECT_EQ(request.message.id, address.id);
      EXPECT_EQ(request.message.secret, address.secret);
      answer(far);
    });
    Result<Client> client = Client::try_open(address, timeout, {});
    exporter.join();
    return client;
  }
  Result<Client> open_with(const Message& message) {
    return open([&](const Socket& socket) { EXPECT_TRUE(send(socket, message, memory.get())); });
  }

  Address address = {
      .pid = static_cast<std::uint32_t>(getpid()), .id = 3, .secret = {1, 2, 3, 4, 5}};
  Message right = {.kind = MessageKind::accepted,
                   .id = 3,
                   .bytes = 4096,
                   .elements = 1024,
                   .dtype = static_cast<std::uint32_t>(DType::f32)};
  Descriptor memory = test::share_memory_file(4096);
  Socket listener, far;
};

TEST_F(ShareClient, OpensAndTakesTurns) {
  const std::size_t before = test::open_descriptors();
  {
    Result<Client> client = open_with(right);
    ASSERT_TRUE(client) << client.failure().text();
    EXPECT_EQ(client->elements(), 1024u);
    EXPECT_GE(client->memory(), 0);
    client->drop_memory();
    EXPECT_LT(client->memory(), 0);
    test::refused(client->try_acquire(1ms, {}), ErrorCode::timeout);
    ASSERT_TRUE(send(far, {.kind = MessageKind::granted, .id = 3}));
    EXPECT_TRUE(client->try_acquire({}, {}));
    client->give_back();
    client->leave();
    // One request, although two calls waited for the turn.
    for (const MessageKind kind :
         {MessageKind::acquire, MessageKind::give_back, MessageKind::leave}) {
      EXPECT_EQ(receive(far, 0).message.kind, kind);
    }
  }
  far = Socket();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_F(ShareClient, RefusesWrongAnswers) {
  const std::size_t before = test::open_descriptors();
  const auto expect_wrong = [&](const char* what, const std::function<void(Message&)>& change) {
    Message wrong = right;
    change(wrong);
    const Failure failure = test::refused(open_with(wrong), ErrorCode::bad_format);
    EXPECT_EQ(failure.number("pid"), address.pid) << what;
    EXPECT_NE(failure.text().find(what), std::string::npos) << failure.text();
  };
  expect_wrong("damaged", [](Message& m) { m.magic = 1; });
  expect_wrong("another kind", [](Message& m) { m.kind = MessageKind::granted; });
  expect_wrong("another kind", [](Message& m) { ++m.id; });
  expect_wrong("did not understand", [](Message& m) {
    m.kind = MessageKind::refused;
    m.refusal = Refusal::malformed;
  });
  expect_wrong("no end", [](Message& m) { m.backend.fill('x'); });
  expect_wrong("type is unknown", [](Message& m) { m.dtype = 200; });
  expect_wrong("no size", [](Message& m) { m.dtype = 0; });
  expect_wrong("no valid size", [](Message& m) { m.bytes = 0; });
  expect_wrong("no valid size", [](Message& m) { m.bytes = ~std::uint64_t{0}; });
  expect_wrong("larger than its memory", [](Message& m) { m.elements = 1025; });
  expect_wrong("larger than its memory",
               [](Message& m) { m.elements = ~std::uint64_t{0} / 4 + 2; });
  memory = Descriptor();
  expect_wrong("is missing", [](Message&) {});
  far = Socket();
  EXPECT_EQ(test::open_descriptors() + 1, before);  // without the memory
}

TEST_F(ShareClient, TellsWhyItWasRefused) {
  test::refused(open_with({.kind = MessageKind::refused, .refusal = Refusal::unknown}),
                ErrorCode::not_found);
  test::refused(open_with({.kind = MessageKind::refused, .refusal = Refusal::full}),
                ErrorCode::capacity);
}

TEST_F(ShareClient, DoesNotWaitForEverForAnAnswer) {
  const Failure failure = test::refused(open([](const Socket&) {}, 1ms), ErrorCode::timeout);
  EXPECT_EQ(failure.number("pid"), address.pid);
  EXPECT_EQ(failure.number("waited"), 1'000'000u);
}

TEST_F(ShareClient, LearnsOfTheEndOfTheExporter) {
  test::refused(open([&](const Socket&) { far = Socket(); }), ErrorCode::peer_lost);
  Result<Client> client = open_with(right);
  ASSERT_TRUE(client);
  far = Socket();
  const Failure ended = test::refused(client->try_acquire({}, {}), ErrorCode::peer_lost);
  EXPECT_NE(ended.text().find("has ended"), std::string::npos) << ended.text();
  EXPECT_EQ(ended.number("pid"), address.pid);
  client->give_back();
  client->leave();
}

TEST_F(ShareClient, RefusesATurnThatIsNone) {
  Result<Client> client = open_with(right);
  ASSERT_TRUE(client);
  ASSERT_TRUE(send(far, right));
  test::refused(client->try_acquire({}, {}), ErrorCode::bad_format);
}

}  // namespace
}  // namespace tern::share
