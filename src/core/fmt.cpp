// Compiles the code of {fmt} once. In all other sources the headers of {fmt} only declare these
// functions; with the full code in every source that formats text, those sources took four times as
// long to compile. The functions are weak, as in a program that uses {fmt} as headers only, so a
// second copy in the program does no harm.
//
// If cmake/TernDependencies.cmake selects the header-only form, every source contains the code it
// uses, and this file is empty.

#include <fmt/format.h>

#ifndef FMT_HEADER_ONLY

#undef FMT_FUNC
#define FMT_FUNC __attribute__((weak))
#include <fmt/format-inl.h>

// The explicit instantiations of {fmt}'s own library, for char and double.
template auto fmt::detail::dragonbox::to_decimal(double) noexcept -> decimal_fp<double>;
template auto fmt::detail::dragonbox::to_decimal(float) noexcept -> decimal_fp<float>;
template auto fmt::detail::thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl(locale_ref) -> char;

#endif
