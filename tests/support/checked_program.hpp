// A small program for tests of the order checker, with one line per operation.
//
// Actor 0 is the host thread H0. Streams have names. Memory is [offset, bytes) of one device, which
// is space 1, or of the host. Every call returns the finding of its record, if there is one.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/order_checker.hpp"

namespace tern::test {

using Found = std::optional<Finding>;

constexpr SpaceRange device(std::uint64_t offset, std::uint64_t bytes) {
  return {1, offset, bytes};
}
constexpr SpaceRange host(std::uint64_t offset, std::uint64_t bytes) { return {0, offset, bytes}; }

class CheckedProgram {
 public:
  explicit CheckedProgram(OrderChecker::OnFinding on_finding = OrderChecker::OnFinding::leave_out)
      : on_finding_(on_finding) {}

  OrderChecker checker;

  /// Sets the call site and the tag of the next records.
  CheckedProgram& at(CallSite site, Tag tag = {}) {
    site_ = site;
    tag_ = tag;
    return *this;
  }
  /// Sets the host thread that submits the next records.
  CheckedProgram& by(ActorId host_thread) {
    host_ = host_thread;
    return *this;
  }

  ActorId stream(std::string_view name = {}, ActorKind kind = ActorKind::stream,
                 std::uint32_t device_number = 0) {
    check({.kind = RecordKind::actor_begins,
           .actor_kind = kind,
           .actor = next_actor_,
           .device = device_number,
           .name = name});
    return next_actor_++;
  }
  ActorId thread(std::string_view name = {}) { return stream(name, ActorKind::host); }
  void end(ActorId actor) { check({.kind = RecordKind::actor_ends, .actor = actor}); }

  Found read(ActorId s, SpaceRange range) { return kernel(s, {{TouchKind::read, range}}); }
  Found write(ActorId s, SpaceRange range) { return kernel(s, {{TouchKind::write, range}}); }
  Found kernel(ActorId s, const std::vector<Touch>& touches, std::string_view name = "k") {
    return operation(OperationKind::kernel, s, touches, name);
  }
  Found copy(ActorId s, SpaceRange from, SpaceRange to) {
    return operation(OperationKind::copy, s, {{TouchKind::read, from}, {TouchKind::write, to}});
  }
  Found fill(ActorId s, SpaceRange range) {
    return operation(OperationKind::fill, s, {{TouchKind::write, range}});
  }

  /// Allocations and frees of the driver, in stream order.
  Found allocate(ActorId s, SpaceRange range, std::uint64_t generation = 0) {
    return life(s, TouchKind::allocate, range, generation);
  }
  Found release(ActorId s, SpaceRange range, std::uint64_t generation = 0) {
    return life(s, TouchKind::release, range, generation);
  }
  /// Allocations and frees of a pool.
  Found give(ActorId s, SpaceRange range, std::uint64_t generation = 0) {
    return life(s, TouchKind::suballocate, range, generation);
  }
  Found take_back(ActorId s, SpaceRange range, std::uint64_t generation = 0) {
    return life(s, TouchKind::subrelease, range, generation);
  }

  Found host_read(SpaceRange range) { return host_touch(TouchKind::read, range); }
  Found host_write(SpaceRange range) { return host_touch(TouchKind::write, range); }
  Found host_allocate(SpaceRange range) { return host_touch(TouchKind::allocate, range); }
  Found host_release(SpaceRange range) { return host_touch(TouchKind::release, range); }
  Found host_touch(TouchKind kind, SpaceRange range) {
    const Touch touch{kind, range};
    return check({.kind = RecordKind::host_access, .touches = {&touch, 1}});
  }

  void record(ActorId s, std::uint64_t event) {
    check({.kind = RecordKind::record_event, .actor = s, .event = event});
  }
  void wait(ActorId s, std::uint64_t event) {
    check({.kind = RecordKind::wait_event, .actor = s, .event = event});
  }
  void end_event(std::uint64_t event) { check({.kind = RecordKind::event_ends, .event = event}); }
  /// Orders `to` after everything that `from` has done so far.
  void join(ActorId from, ActorId to) {
    record(from, 1000);
    wait(to, 1000);
  }
  void host_wait(ActorId s) { host_wait(s, checker.sequence(s)); }
  void host_wait(ActorId s, std::uint64_t sequence) {
    check({.kind = RecordKind::host_wait_mark, .actor = s, .sequence = sequence});
  }
  void host_wait_event(std::uint64_t event) {
    check({.kind = RecordKind::host_wait_event, .event = event});
  }
  /// With a stream, releases only the order of the work of the stream that is known to be complete.
  void release_edge(std::uint64_t tag, ActorId stream = 0) {
    check({.kind = RecordKind::release_edge, .actor = stream, .event = tag});
  }
  void acquire_edge(std::uint64_t tag) { check({.kind = RecordKind::acquire_edge, .event = tag}); }
  void lose(std::uint64_t count = 0) {
    check({.kind = RecordKind::lost_records, .sequence = count});
  }
  Found shutdown() { return check({.kind = RecordKind::shutdown}); }

  Found operation(OperationKind kind, ActorId s, const std::vector<Touch>& touches,
                  std::string_view name = {}) {
    return check({.operation = kind, .actor = s, .name = name, .touches = touches});
  }
  /// Sets the host thread, the site and the tag of the record, and checks it.
  Found check(TraceRecord record) {
    record.host = host_;
    record.site = site_;
    record.tag = tag_;
    return checker.check(record, on_finding_);
  }

 private:
  Found life(ActorId s, TouchKind kind, SpaceRange range, std::uint64_t generation) {
    const bool begins = kind == TouchKind::allocate || kind == TouchKind::suballocate;
    return operation(begins ? OperationKind::allocate : OperationKind::release, s,
                     {{kind, range, generation}});
  }

  const OrderChecker::OnFinding on_finding_;
  ActorId next_actor_ = 1;
  ActorId host_ = 0;
  CallSite site_;
  Tag tag_;
};

/// Returns a code such as "TERN-S101", or "silent".
inline std::string code_of(const Found& found) { return found ? code_text(found->code) : "silent"; }

}  // namespace tern::test
