// The code of {fmt}, compiled once. Elsewhere its headers only declare these functions: with all of
// it in every source that formats a sentence, those took four times as long to compile. They are
// weak, as they are in a program that uses {fmt} as headers, so another copy does no harm.
//
// Where cmake/TernDependencies.cmake says otherwise, every source has the code it uses, and this
// file none.

#include <fmt/format.h>

#ifndef FMT_HEADER_ONLY

#undef FMT_FUNC
#define FMT_FUNC __attribute__((weak))
#include <fmt/format-inl.h>

// What {fmt} instantiates in its own library, for char and double.
template auto fmt::detail::dragonbox::to_decimal(double) noexcept -> decimal_fp<double>;
template auto fmt::detail::dragonbox::to_decimal(float) noexcept -> decimal_fp<float>;
template auto fmt::detail::thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl(locale_ref) -> char;

#endif
