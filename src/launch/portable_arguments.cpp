#include "launch/portable_arguments.hpp"

#include <bit>
#include <optional>
#include <string_view>

#include "launch/reduction_passes.hpp"
#include "tern/core/dtype.hpp"

namespace tern {
namespace {

ArgumentType type_of(language::Scalar scalar) noexcept {
  switch (scalar) {
    case language::Scalar::boolean:
      return {1, DType::boolean};
    case language::Scalar::i8:
      return {1, DType::i8};
    case language::Scalar::u8:
      return {1, DType::u8};
    case language::Scalar::i16:
      return {2, DType::i16};
    case language::Scalar::u16:
      return {2, DType::u16};
    case language::Scalar::i32:
      return {4, DType::i32};
    case language::Scalar::u32:
      return {4, DType::u32};
    case language::Scalar::i64:
      return {8, DType::i64};
    case language::Scalar::u64:
      return {8, DType::u64};
    case language::Scalar::f32:
      return {4, DType::f32};
    case language::Scalar::f64:
      return {8, DType::f64};
  }
  return {};
}

Access access_of(language::Intent intent) noexcept {
  switch (intent) {
    case language::Intent::in:
    case language::Intent::value:
      return Access::read;
    case language::Intent::out:
      return Access::discard;
    case language::Intent::inout:
    case language::Intent::part:  // the elements that are not written keep their values
      break;
  }
  return Access::read_write;
}

std::string_view declaration_of(Access access) noexcept {
  switch (access) {
    case Access::read:
      return "in()";
    case Access::discard:
      return "out()";
    case Access::read_write:
      break;
  }
  return "inout()";
}

}  // namespace

std::vector<DeclaredParameter> declared_parameters(const language::Program& program) {
  std::vector<DeclaredParameter> declared;
  for (const language::Parameter& parameter : program.parameters) {
    const bool is_memory = parameter.intent != language::Intent::value;
    declared.push_back({type_of(parameter.type), is_memory,
                        is_memory && parameter.intent != language::Intent::in});
  }
  if (program.form == language::Form::reduction) {
    declared.push_back({type_of(program.result), true, true});
  }
  return declared;
}

Result<LaunchSize> PortableArguments::try_prepare(const LaunchExtent& extent,
                                                  std::span<const LaunchArgument> arguments,
                                                  CallSite site) noexcept {
  const language::Program& program = *kernel_.program;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const LaunchArgument& argument = arguments[i];
    if (!argument.is_memory()) {
      packed_.emplace_back(argument);
    } else if (i < program.parameters.size()) {
      if (Result<void> added = try_add_array(i, argument, site); !added) return added.failure();
    } else {
      // The result of a reduction has no size: it is one element.
      const std::size_t bytes = kernel_.declared[i].type.bytes;
      if (argument.bytes() != bytes) {
        return Failure(
                   ErrorCode::size_mismatch,
                   "argument {index} of reduction '{kernel}' has {actual} bytes, and its result "
                   "is one value of {expected} bytes. Pass one element, or a Scalar.",
                   site)
            .with("index", i)
            .with("expected", bytes)
            .with("actual", argument.bytes())
            .with("kernel", kernel_.name);
      }
      packed_.emplace_back(argument.with_access(Access::discard));
    }
  }
  return try_size(extent, site);
}

Result<void> PortableArguments::try_add_array(std::size_t index, const LaunchArgument& argument,
                                              CallSite site) noexcept {
  const language::Program& program = *kernel_.program;
  const Access access = access_of(program.parameters[index].intent);
  if (!argument.is_undeclared() && argument.access() != access) {
    return Failure(ErrorCode::invalid_argument,
                   "argument {index} of kernel '{kernel}' is declared {value}, and the text of the "
                   "kernel declares {expected}. Pass the memory without a declaration.",
                   site)
        .with("name", "arguments")
        .with("index", index)
        .with("value", declaration_of(argument.access()))
        .with("expected", declaration_of(access))
        .with("kernel", kernel_.name);
  }
  // The bytes of an element are a power of two, and a shift is much faster than a division.
  const std::uint64_t count =
      argument.bytes() >> std::countr_zero(kernel_.declared[index].type.bytes);
  const bool is_by_element =
      program.form == language::Form::element || program.form == language::Form::reduction;
  if (is_by_element && counts_.size() > 0 && counts_.data()[0] != count) {
    return Failure(ErrorCode::size_mismatch,
                   "argument {index} of kernel '{kernel}' has {actual} elements, and the first "
                   "array has {expected}. Pass arrays or slices of equal size.",
                   site)
        .with("index", index)
        .with("expected", counts_.data()[0])
        .with("actual", count)
        .with("kernel", kernel_.name);
  }
  packed_.emplace_back(argument.with_access(access));
  packed_.emplace_back(LaunchArgument::of_value(counts_.emplace_back(count)));
  return {};
}

Result<LaunchSize> PortableArguments::try_size(const LaunchExtent& extent,
                                               CallSite site) const noexcept {
  const language::Form form = kernel_.program->form;
  const std::optional<Elements> elements = extent.elements();
  // The size of a block is part of a block kernel's text, so it must not depend on the device.
  const bool is_free = form != language::Form::block && kernel_.info.block_threads != 0;
  const std::uint32_t suitable = is_free ? kernel_.info.block_threads : LaunchSize::usual_block;
  if (form == language::Form::thread || form == language::Form::block) {
    if (!elements || elements->count != Elements::of_arguments) {
      return extent.try_size(suitable, site);
    }
    return Failure(ErrorCode::invalid_argument,
                   "kernel '{kernel}' was launched with {value}, and only element kernels and "
                   "reductions have one thread for each element. Pass the number of threads.",
                   site)
        .with("name", "extent")
        .with("value", "elements()")
        .with("kernel", kernel_.name);
  }
  const std::uint64_t count = counts_.data()[0];
  if (!elements || (elements->count != Elements::of_arguments && elements->count != count)) {
    return Failure(ErrorCode::size_mismatch,
                   "kernel '{kernel}' runs once for each of the {expected} elements of its arrays, "
                   "and the launch has another size. Pass elements().",
                   site)
        .with("expected", count)
        .with("actual", elements ? elements->count : 0)
        .with("kernel", kernel_.name);
  }
  if (form == language::Form::reduction) return reduction_size(count, site);
  return LaunchSize::try_for_elements(
      count, elements->block_threads != 0 ? elements->block_threads : suitable, site);
}

DeclaredAccesses::DeclaredAccesses(const KernelState& kernel,
                                   std::span<const LaunchArgument> arguments) noexcept {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const LaunchArgument& argument = arguments[i];
    packed_.emplace_back(argument.is_undeclared()
                             ? argument.with_access(kernel.declared[i].is_written
                                                        ? Access::read_write
                                                        : Access::read)
                             : argument);
  }
}

}  // namespace tern
