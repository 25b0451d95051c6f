// The trees that the parser builds. Mistakes are in parser_mistakes_test.cpp.

#include "language/parser.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "language/names.hpp"

namespace tern::language {
namespace {

/// Writes a tree as text, operators first: "(+ x (float i))" is x + float(i).
class TreeText {
 public:
  explicit TreeText(const Program& program) : program_(program) {}

  std::string of(const Expression& e) const {
    switch (e.kind) {
      case Expression::Kind::integer:
        return std::to_string(e.integer) + suffix(e.type);
      case Expression::Kind::real: {
        std::string digits = std::to_string(e.real);
        digits.erase(digits.find_last_not_of('0') + 1);
        return digits + suffix(e.type);
      }
      case Expression::Kind::variable:
        return name_of(e);
      case Expression::Kind::coordinate:
        return std::string(text(e.coordinate)) + "." + "xyz"[e.axis];
      case Expression::Kind::element:
        return e.operands.empty() ? name_of(e) : list(name_of(e), e);
      case Expression::Kind::size:
        return "(size " + name_of(e) + ")";
      case Expression::Kind::unary:
      case Expression::Kind::binary:
        return list(std::string(text(e.op)), e);
      case Expression::Kind::conditional:
        return list("?", e);
      case Expression::Kind::cast:
        return list(std::string(type_text(e.type)), e);
      case Expression::Kind::assign:
        return list(std::string(text(e.op)) + "=", e);
      case Expression::Kind::increment: {
        const std::string op = e.op == Operator::add ? "++" : "--";
        return list(e.is_prefix ? op + "_" : "_" + op, e);
      }
      case Expression::Kind::call:
        return list(std::string(text(e.function)), e);
      case Expression::Kind::atomic:
        return list(std::string(text(e.atomic)) + " " + name_of(e), e);
    }
    return "?";
  }

  std::string of(const Statement& s) const {
    const auto inner = [&](std::string_view name) {
      std::string made = "{" + std::string(name);
      for (const Expression& one : s.expressions) made += " " + of(one);
      for (const Statement& one : s.statements) made += " " + of(one);
      return made + "}";
    };
    switch (s.kind) {
      case Statement::Kind::declare:
        return inner(program_.variables[s.variable].name + " :=");
      case Statement::Kind::expression:
        return of(s.expressions[0]);
      case Statement::Kind::if_:
        return inner("if");
      case Statement::Kind::for_:
        return inner(s.has_step ? "for" : "for-without-step");
      case Statement::Kind::while_:
        return inner("while");
      case Statement::Kind::do_:
        return inner("do");
      case Statement::Kind::break_:
        return "break";
      case Statement::Kind::continue_:
        return "continue";
      case Statement::Kind::return_:
        return "return";
      case Statement::Kind::block:
        return inner(s.is_list ? "list" : "");
      case Statement::Kind::threads:
        return inner("threads");
    }
    return "?";
  }

 private:
  static std::string suffix(Scalar type) {
    return type == Scalar::i32 || type == Scalar::f64 ? "" : ":" + std::string(type_text(type));
  }
  std::string name_of(const Expression& e) const { return program_.variables[e.variable].name; }
  std::string list(std::string made, const Expression& e) const {
    for (const Expression& one : e.operands) made += " " + of(one);
    return "(" + made + ")";
  }
  const Program& program_;
};

/// Throws if there is no program, which ends the test with the message.
Program parsed(std::string_view text, std::string_view entry = {}) {
  return try_parse(text, entry).value();
}

std::string body_of(std::string_view text) {
  const Program program = parsed(text);
  return TreeText(program).of(program.body);
}

/// Returns the tree of an expression in a kernel with a parameter of each type.
std::string tree_of(const std::string& expression) {
  const Program program = parsed(
      "kernel f(inout<float> x, inout<int> n, inout<int8_t> small, bool flag, int8_t c, uint8_t uc,"
      " int16_t s, uint16_t us, int i, unsigned u, int64_t l, uint64_t ul, float g, double d) {" +
      expression + "; }");
  return program.body.statements.size() == 1 ? TreeText(program).of(program.body.statements[0])
                                             : "?";
}

/// Returns the type of an expression in that kernel.
std::string type_of(const std::string& expression) {
  const Program program = parsed(
      "kernel f(inout<float> x, bool flag, int8_t c, uint8_t uc, int16_t s, uint16_t us, int i, "
      "unsigned u, int64_t l, uint64_t ul, float g, double d) {" +
      expression + "; }");
  if (program.body.statements.size() != 1) return "?";
  return std::string(type_text(program.body.statements[0].expressions[0].type));
}

// --- Kernels

TEST(Parser, ReadsAnElementKernel) {
  const Program program =
      parsed("element saxpy(in<float> x, inout<float> y, float a) { y += a * x; }");
  EXPECT_EQ(program.name, "saxpy");
  EXPECT_EQ(program.form, Form::element);
  ASSERT_EQ(program.parameters.size(), 3u);
  EXPECT_EQ(program.parameters[0].name, "x");
  EXPECT_EQ(program.parameters[0].intent, Intent::in);
  EXPECT_EQ(program.parameters[0].type, Scalar::f32);
  EXPECT_EQ(program.parameters[1].intent, Intent::inout);
  EXPECT_EQ(program.parameters[2].name, "a");
  EXPECT_EQ(program.parameters[2].intent, Intent::value);
  EXPECT_EQ(program.variables[1].kind, Variable::Kind::array);
  EXPECT_EQ(program.variables[1].parameter, 1u);
  EXPECT_EQ(program.variables[2].kind, Variable::Kind::value);
  EXPECT_EQ(TreeText(program).of(program.body), "{ (+= y (* a x))}");
  EXPECT_FALSE(program.uses_float64);
}

TEST(Parser, ReadsAKernelOfOneThread) {
  const Program program = parsed(
      "kernel histogram(in<uint32_t> keys, inout<uint32_t> counts) {\n"
      "  const size_t i = index.x;  // of the launch\n"
      "  if (i < size(keys)) atomic_add(counts, keys[i], 1);\n"
      "}\n");
  EXPECT_EQ(program.form, Form::thread);
  EXPECT_EQ(TreeText(program).of(program.body),
            "{ {i := index.x} {if (< i (size keys)) (atomic_add counts (uint64_t (keys i)) "
            "1:unsigned)}}");
  EXPECT_TRUE(program.variables[0].needs_size);
  EXPECT_FALSE(program.variables[1].needs_size);
  EXPECT_TRUE(program.variables[2].is_const);
  EXPECT_TRUE(program.variables[2].is_of_thread);
  EXPECT_EQ(program.variables[2].at.line, 2u);
  EXPECT_EQ(program.variables[2].at.column, 16u);
}

TEST(Parser, ReadsABlockKernel) {
  const Program program = parsed(
      "block f(in<float> x, out<float> y) {"
      "  const int width = 4 * 64; shared<float, width + 2> tile, other;"
      "  for (auto thread : threads) { const size_t i = thread.x; tile[i] = x[i]; }"
      "  for (int k = 0; k < 2; ++k) { for (auto thread : threads) y[0] = tile[k]; }"
      "}");
  EXPECT_EQ(program.form, Form::block);
  EXPECT_FALSE(program.variables[2].is_of_thread);  // width
  EXPECT_EQ(program.variables[3].kind, Variable::Kind::shared);
  EXPECT_EQ(program.variables[3].elements, 258u);
  EXPECT_EQ(program.variables[4].name, "other");
  EXPECT_EQ(program.variables[5].name, "i");
  EXPECT_TRUE(program.variables[5].is_of_thread);
  EXPECT_EQ(TreeText(program).of(program.body),
            "{ {width := (* 4 64)} {} {threads { {i := thread.x} (= (tile i) (x i))}} "
            "{for (< k 2) (++_ k) {k := 0} { {threads (= (y 0:int64_t) (tile (int64_t k)))}}}}");
}

TEST(Parser, ReadsAReduction) {
  const Program program = parsed(
      "reduction<double> dot(in<float> x, in<float> y, float scale) {"
      "  identity = 0; map = x * y * scale; combine = a + b; }");
  EXPECT_EQ(program.form, Form::reduction);
  EXPECT_EQ(program.result, Scalar::f64);
  EXPECT_TRUE(program.uses_float64);
  const TreeText tree(program);
  EXPECT_EQ(tree.of(program.identity), "0.");
  EXPECT_EQ(tree.of(program.map), "(double (* (* x y) scale))");
  EXPECT_EQ(tree.of(program.combine), "(+ a b)");
  EXPECT_TRUE(program.body.statements.empty());
}

TEST(Parser, ReadsTheTextAsOneLine) {
  const std::string_view text =
      "element clamp(in<float> x, out<float> y) { if (x < 0.0f) { y = 0; return; } y = x; }";
  EXPECT_EQ(body_of(text), "{ {if (< x 0.:float) { (= y 0.:float) return}} (= y x)}");
}

TEST(Parser, SelectsAKernelOfSeveral) {
  const std::string_view text =
      "element one(out<int> x) { x = 1; } kernel two(inout<int> x) { x[0] = 2; }";
  EXPECT_EQ(parsed(text, "two").name, "two");
  EXPECT_EQ(parsed(text, "one").form, Form::element);
  EXPECT_EQ(parsed(text, "two").text, text);
  const Result<Program> none = try_parse(text);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::not_found);
  EXPECT_EQ(none.failure().string("names"), "one, two");
  const Result<Program> unknown = try_parse(text, "three");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.failure().code(), ErrorCode::not_found);
  EXPECT_EQ(unknown.failure().text(),
            "the text has no kernel 'three'. Name one of its kernels: one, two.");
}

// --- Statements

TEST(Parser, ReadsEveryStatement) {
  const auto body = [](const std::string& text) {
    return body_of("kernel f(inout<int> x, int n) { " + text + " }");
  };
  EXPECT_EQ(body("int i = 1, j; const float g = 2;"), "{ {list {i := 1} {j :=}} {g := 2.:float}}");
  EXPECT_EQ(body("if (n) ; else if (n > 1) return; else { return; }"),
            "{ {if (bool n) {} {if (> n 1) return { return}}}}");
  EXPECT_EQ(body("for (;;) break;"), "{ {for-without-step 1:bool {} break}}");
  EXPECT_EQ(body("for (n = 0; n < 3; n++) continue;"), "{ {for (< n 3) (_++ n) (= n 0) continue}}");
  EXPECT_EQ(body("for (int i = 0, m = n; i < m; i += 2) { }"),
            "{ {for (< i m) (+= i 2) {list {i := 0} {m := n}} {}}}");
  EXPECT_EQ(body("while (true) { if (n) break; }"), "{ {while 1:bool { {if (bool n) break}}}}");
  EXPECT_EQ(body("do --n; while (n != 0);"), "{ {do (!= n 0) (--_ n)}}");
  EXPECT_EQ(body("n; ; { n + 1; }"), "{ n {} { (+ n 1)}}");
}

TEST(Parser, ResolvesNamesByScope) {
  const Program program = parsed(
      "kernel f(inout<int> x, int n) {"
      "  { float n = 1; x[0] = n; }"
      "  for (int n = 0; n < 1; ++n) ;"
      "  if (n) int m = 1;"
      "  int m = 2; x[m] = n; }");
  const auto& statements = program.body.statements;
  EXPECT_EQ(TreeText(program).of(statements[0]), "{ {n := 1.:float} (= (x 0:int64_t) (int n))}");
  const Expression& last = statements.back().expressions[0];
  EXPECT_EQ(last.operands[1].variable, 1u) << "the parameter";
  EXPECT_EQ(program.variables[last.operands[0].operands[0].operands[0].variable].at.column, 116u);
}

// --- Expressions

TEST(Parser, BindsOperatorsAsC) {
  EXPECT_EQ(tree_of("i + i * i"), "(+ i (* i i))");
  EXPECT_EQ(tree_of("i - i - i"), "(- (- i i) i)");
  EXPECT_EQ(tree_of("(i - (i - i))"), "(- i (- i i))");
  EXPECT_EQ(tree_of("-i * ~i"), "(* (- i) (~ i))");
  EXPECT_EQ(tree_of("i << 1 + i"), "(<< i (+ 1 i))");
  EXPECT_EQ(tree_of("i | i ^ i & i"), "(| i (^ i (& i i)))");
  EXPECT_EQ(tree_of("i < 1 == flag"), "(== (int (< i 1)) (int flag))");
  EXPECT_EQ(tree_of("flag || flag && !i"), "(|| flag (&& flag (! (bool i))))");
  EXPECT_EQ(tree_of("flag ? i : flag ? 1 : 2"), "(? flag i (? flag 1 2))");
  EXPECT_EQ(tree_of("i = i = 2"), "(= i (= i 2))");
  EXPECT_EQ(tree_of("- -i"), "(- (- i))");
  EXPECT_EQ(tree_of("i >= 1 != i <= 2"), "(!= (int (>= i 1)) (int (<= i 2)))");
  EXPECT_EQ(tree_of("i / i % i >> 1"), "(>> (% (/ i i) i) 1)");
}

TEST(Parser, HasTheTypesOfC) {
  EXPECT_EQ(type_of("c + c"), "int");
  EXPECT_EQ(type_of("-uc"), "int");
  EXPECT_EQ(type_of("~us"), "int");
  EXPECT_EQ(type_of("+s"), "int");
  EXPECT_EQ(type_of("flag + flag"), "int");
  EXPECT_EQ(type_of("i + u"), "unsigned");
  EXPECT_EQ(type_of("u + l"), "int64_t");
  EXPECT_EQ(type_of("l + ul"), "uint64_t");
  EXPECT_EQ(type_of("ul + g"), "float");
  EXPECT_EQ(type_of("g * d"), "double");
  EXPECT_EQ(type_of("g * 0.5"), "double");
  EXPECT_EQ(type_of("g * 0.5f"), "float");
  EXPECT_EQ(type_of("c << l"), "int");
  EXPECT_EQ(type_of("ul >> 1"), "uint64_t");
  EXPECT_EQ(type_of("g < d"), "bool");
  EXPECT_EQ(type_of("!g"), "bool");
  EXPECT_EQ(type_of("flag && i"), "bool");
  EXPECT_EQ(type_of("flag ? c : u"), "unsigned");
  EXPECT_EQ(type_of("flag ? c : c"), "int8_t");
  EXPECT_EQ(type_of("c = 3"), "int8_t");
  EXPECT_EQ(type_of("c++"), "int8_t");
  EXPECT_EQ(type_of("size(x)"), "uint64_t");
  EXPECT_EQ(type_of("index.y"), "uint64_t");
  EXPECT_EQ(type_of("min(c, u)"), "unsigned");
  EXPECT_EQ(type_of("max(g, 1)"), "float");
  EXPECT_EQ(type_of("abs(c)"), "int");
  EXPECT_EQ(type_of("pow(g, 2)"), "float");
  EXPECT_EQ(type_of("fma(g, g, d)"), "double");
}

TEST(Parser, ConvertsOperands) {
  EXPECT_EQ(tree_of("i + u"), "(+ (unsigned i) u)");
  EXPECT_EQ(tree_of("c < uc"), "(< (int c) (int uc))");
  EXPECT_EQ(tree_of("c << ul"), "(<< (int c) ul)");
  EXPECT_EQ(tree_of("g ? i : l"), "(? (bool g) (int64_t i) l)");
  EXPECT_EQ(tree_of("min(i, g)"), "(min (float i) g)");
  EXPECT_EQ(tree_of("g * float(c) * (int)g"), "(* (* g (float c)) (float (int g)))");
  EXPECT_EQ(tree_of("static_cast<unsigned int>(c)"), "(unsigned c)");
  EXPECT_EQ(tree_of("(unsigned int)-c"), "(unsigned (- (int c)))");
  EXPECT_EQ(tree_of("(int)i + i"), "(+ (int i) i)");
}

TEST(Parser, ConvertsAssignedValues) {
  EXPECT_EQ(tree_of("i = g"), "(= i (int g))");
  EXPECT_EQ(tree_of("flag = i"), "(= flag (bool i))");
  EXPECT_EQ(tree_of("c += l"), "(+= c l)");        // computed as int64_t
  EXPECT_EQ(tree_of("c += c"), "(+= c (int c))");  // computed as int
  EXPECT_EQ(tree_of("i *= g"), "(*= i g)");
  EXPECT_EQ(tree_of("ul <<= i"), "(<<= ul (uint64_t i))");  // computed in the type of ul
  EXPECT_EQ(tree_of("small[i] = l"), "(= (small (int64_t i)) (int8_t l))");
  EXPECT_EQ(tree_of("x[uc] -= d"), "(-= (x (uint64_t uc)) d)");
  EXPECT_EQ(tree_of("(n[0]) ^= 1"), "(^= (n 0:int64_t) 1)");
}

TEST(Parser, ConvertsLiteralsWithoutACast) {
  EXPECT_EQ(tree_of("g = 0.5"), "(= g 0.5:float)");
  EXPECT_EQ(tree_of("g = -0.5"), "(= g (- 0.5:float))");
  EXPECT_EQ(tree_of("g + 1"), "(+ g 1.:float)");
  EXPECT_EQ(tree_of("g = float(2.5)"), "(= g 2.5:float)");
  EXPECT_EQ(tree_of("ul + 1"), "(+ ul 1:uint64_t)");
  EXPECT_EQ(tree_of("c = 200"), "(= c (int8_t 200))") << "which is another value";
  EXPECT_EQ(tree_of("i = 2.5"), "(= i (int 2.5))");
  EXPECT_FALSE(parsed("element f(out<float> x) { x = -0.5; }").uses_float64);
  EXPECT_TRUE(parsed("element f(inout<float> x) { x = 0.5 * x; }").uses_float64);
  EXPECT_TRUE(parsed("element f(inout<float> x, double d) { x = 1; }").uses_float64);
}

TEST(Parser, ReadsPositions) {
  EXPECT_EQ(tree_of("index.x + thread.y * block_size.z"), "(+ index.x (* thread.y block_size.z))");
  EXPECT_EQ(tree_of("block.x / grid_size.x"), "(/ block.x grid_size.x)");
}

TEST(Parser, ReadsAtomics) {
  EXPECT_EQ(tree_of("atomic_compare_exchange(n, u, 1, l)"),
            "(atomic_compare_exchange n (uint64_t u) 1 (int l))");
  EXPECT_EQ(tree_of("atomic_add(x, 0, 1)"), "(atomic_add x 0:int64_t 1.:float)");
  EXPECT_EQ(type_of("atomic_add(x, 0, d)"), "float");
}

TEST(Parser, KnowsTheSizeOfASharedArray) {
  EXPECT_EQ(body_of("block f(inout<int> x) { shared<int, 8> t; int n = size(t); }"),
            "{ {} {n := 8}}");
}

TEST(Parser, ComputesTheSizeOfASharedArray) {
  const auto elements = [](const std::string& size) {
    return parsed("block f(inout<int> x) { const int n = 7; const bool flag = true; shared<int, " +
                  size + "> t; }")
        .variables.back()
        .elements;
  };
  EXPECT_EQ(elements("n * 2 + 1"), 15u);
  EXPECT_EQ(elements("(n - 9) / -2 + 1"), 2u);
  EXPECT_EQ(elements("-n % 4 + 9"), 6u);
  EXPECT_EQ(elements("17u / 5u + 17u % 5u"), 5u);
  EXPECT_EQ(elements("(12 & 10 | 1 ^ 3)"), 10u);
  EXPECT_EQ(elements("(1 << 4) + (-64 >> 3)"), 8u);
  EXPECT_EQ(elements("(0x80000000 >> 28)"), 8u);
  EXPECT_EQ(elements("~0u / 0x10000000u"), 15u);
  EXPECT_EQ(elements("uint8_t(260) + flag"), 5u);
  EXPECT_EQ(elements("int8_t(130) + 200"), 74u);
  EXPECT_EQ(elements("(-9223372036854775807 - 1) / -1 % 5 + 9"), 6u) << "it wraps";
  EXPECT_EQ(elements("-6 / -1"), 6u);
  EXPECT_EQ(elements("!n + 1"), 1u);
}

TEST(Parser, LetsAKernelReadWhatItMayHaveWritten) {
  parsed("element f(out<float> y) { y = 1; y += y; }");
  parsed(
      "element f(out<float> y) { for (int i = 0; i < 2; ++i) { if (i > 0) y += 1; else y = 1; } }");
  parsed("kernel f(out<int> y, part<int> z) { y[0] = 1; y[1] = y[0]; z[y[0]] = 1; z[1] += 1; }");
  parsed("element f(part<float> y, in<float> x) { if (x > 0) y = x; }");
}

TEST(Parser, AcceptsAValueParameterAsAVariable) {
  EXPECT_EQ(body_of("element f(out<int> y, int n) { n += 1; y = n; }"), "{ (+= n 1) (= y n)}");
  EXPECT_TRUE(parsed("element f(out<int> y, const int n) { y = n; }").variables[1].is_const);
}

TEST(Parser, AcceptsTheLargestKernels) {
  std::string parameters = "inout<int> x";
  for (int i = 0; i < 62; ++i) parameters += ", int p" + std::to_string(i);
  EXPECT_EQ(parsed("kernel f(" + parameters + ") { }").parameters.size(), 63u);
  parsed("block f(inout<int> x) { shared<float, 12288> t; }");
  parsed("element f(inout<int> x) { x = " + std::string(150, '(') + "1" + std::string(150, ')') +
         "; }");
}

}  // namespace
}  // namespace tern::language
