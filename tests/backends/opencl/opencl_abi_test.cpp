#include "backends/opencl/opencl_abi.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "backends/opencl/opencl_table.hpp"

#if __has_include(<CL/cl.h>)
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#endif

namespace tern::opencl {
namespace {

#if defined(CL_TARGET_OPENCL_VERSION)

#define TERN_OPENCL_RESULT(name, official, number) static_assert(result::name == CL_##official);
TERN_FOR_EACH_OPENCL_RESULT(TERN_OPENCL_RESULT)
#undef TERN_OPENCL_RESULT

#define TERN_OPENCL_NUMBER(name, official, type, value)      \
  static_assert(tern::opencl::name == CL_##official, #name); \
  static_assert(sizeof(tern::opencl::name) >= sizeof(cl_int), #name);
TERN_FOR_EACH_OPENCL_NUMBER(TERN_OPENCL_NUMBER)
#undef TERN_OPENCL_NUMBER

#define TERN_SAME_TYPE(name)                                                          \
  static_assert(sizeof(::name) == sizeof(tern::opencl::name) &&                       \
                    alignof(::name) == alignof(tern::opencl::name) &&                 \
                    std::is_signed_v<::name> == std::is_signed_v<tern::opencl::name>, \
                #name)
TERN_SAME_TYPE(cl_int);
TERN_SAME_TYPE(cl_uint);
TERN_SAME_TYPE(cl_ulong);
TERN_SAME_TYPE(cl_bool);
TERN_SAME_TYPE(cl_bitfield);
TERN_SAME_TYPE(cl_context_properties);
TERN_SAME_TYPE(cl_queue_properties);

/// Types are passed alike if both are pointers, or numbers of one size and sign. The structs behind
/// handles have no definition, so there is nothing more to compare.
template <class A, class B>
constexpr bool passes_alike() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_signed_v<A> == std::is_signed_v<B>;
  }
}

template <class Official, class Ours>
struct SameShape : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameShape<R (*)(A...), S (*)(B...)>
    : std::bool_constant<passes_alike<R, S>() && (passes_alike<A, B>() && ...)> {
};

#define TERN_OPENCL_ENTRY(returned, name, parameters) \
  static_assert(SameShape<decltype(&::name), decltype(Table::name)>::value, #name);
TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY

#else

TEST(OpenClAbi, AgreesWithTheOfficialHeader) {
  GTEST_SKIP() << "the official header is not installed";
}

#endif

TEST(OpenClAbi, HasNumbersOfTheSizesThatTheSpecificationFixes) {
  EXPECT_EQ(sizeof(cl_int), 4u);
  EXPECT_EQ(sizeof(cl_bitfield), 8u);
  EXPECT_EQ(sizeof(cl_bool), 4u);
  EXPECT_EQ(sizeof(cl_event), sizeof(void*));
}

}  // namespace
}  // namespace tern::opencl
