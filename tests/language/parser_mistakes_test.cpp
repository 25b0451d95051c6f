// What the parser refuses, and the sentence of each mistake.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "language/lexer.hpp"
#include "language/parser.hpp"

namespace tern::language {
namespace {

/// Returns the message of the failure, or "accepted".
std::string message_of(std::string_view text) {
  const Result<Program> made = try_parse(text);
  return made ? "accepted" : made.failure().text();
}

/// Checks that the text is refused with a message that contains the sentence.
void expect_refused(const std::string& text, std::string_view sentence) {
  const Result<Program> made = try_parse(text);
  if (made) {
    ADD_FAILURE() << "accepted: " << text.substr(0, 200);
    return;
  }
  EXPECT_EQ(made.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(made.failure().string("name"), "text");
  const std::string message = made.failure().text();
  EXPECT_NE(message.find(sentence), message.npos) << message << "\n" << text.substr(0, 200);
  EXPECT_EQ(message.find('?'), message.npos) << "a placeholder has no field: " << message;
}

void expect_refused_in_element(const std::string& body, std::string_view sentence) {
  expect_refused(
      "element f(in<float> x, in<int> k, inout<float> y, float a, int n) { " + body + " }",
      sentence);
}

void expect_refused_in_kernel(const std::string& body, std::string_view sentence) {
  expect_refused(
      "kernel f(in<float> x, inout<float> y, inout<int> c, inout<uint8_t> bytes, part<float> p, "
      "float a, int n) { " +
          body + " }",
      sentence);
}

void expect_refused_in_block(const std::string& body, std::string_view sentence) {
  expect_refused("block f(in<float> x, inout<float> y, inout<int> c, int n) { " + body + " }",
                 sentence);
}

void expect_refused_in_reduction(const std::string& body, std::string_view sentence) {
  expect_refused("reduction<float> f(in<float> x, float s) { " + body + " }", sentence);
}

TEST(ParserMistakes, NameTheLineTheKernelAndTheWord) {
  const Result<Program> made = try_parse(
      "element saxpy(in<float> x, inout<float> y, float a) {\n"
      "  float sum = a * x + y;\n"
      "  if (a > 0) x = sum;\n"
      "}\n");
  ASSERT_FALSE(made);
  const Failure& failure = made.failure();
  EXPECT_EQ(failure.text(),
            "line 3, column 14 of kernel 'saxpy': 'x' is declared in<float>, so the kernel cannot "
            "write it. Declare it inout<float>.");
  EXPECT_EQ(failure.number("line"), 3u);
  EXPECT_EQ(failure.number("column"), 14u);
  EXPECT_EQ(failure.string("kernel"), "saxpy");
  EXPECT_EQ(failure.string("value"), "x");
  EXPECT_EQ(failure.string("name"), "text");
}

TEST(ParserMistakes, OutsideOfAKernelNameThePlaceOnly) {
  EXPECT_EQ(message_of("\n void f() {}"),
            "line 2, column 2: 'void' cannot begin a kernel. Begin it with 'element', 'kernel', "
            "'block' or 'reduction<type>', and a name.");
  EXPECT_EQ(try_parse("void").failure().string("kernel"), "");
  expect_refused("", "line 1, column 1: the text has no kernel.");
  expect_refused(" /* only a comment */ ", "the text has no kernel.");
}

TEST(ParserMistakes, OfTheTextItself) {
  expect_refused_in_element("y = 1 @ 2;", "'@' is not a character of the language.");
  expect_refused_in_element("y = \xc3\xa9;", "the text has a character outside of ASCII.");
  expect_refused_in_element("/* y = 1;", "the comment has no end.");
  expect_refused_in_element("y = \"1\";", "a kernel has no strings");
  expect_refused_in_element("y = '1';", "a kernel has no strings");
  expect_refused_in_element("#define n 1\n", "a kernel has no preprocessor directives.");
  expect_refused_in_element("y = \\\n 1;", "a line cannot be continued");
  expect_refused_in_element(std::string("y = \0;", 6), "'byte 0x00' is not a character");
  expect_refused_in_element("float " + std::string(200, 'q') + ";", "more than 128 characters");
  expect_refused_in_element("y = 08;", "'08' is not a number of C.");
  expect_refused_in_element("n = 99999999999999999999;", "is too large for its type.");
  expect_refused_in_element("y = 1e400;", "is too large or too small for its type.");
  expect_refused_in_element("y = 1e300;", "the number is too large for 'float'.");
  expect_refused(std::string(max_text_bytes + 1, ' '), "1.0 MiB are allowed.");
}

TEST(ParserMistakes, OfHeaders) {
  expect_refused("reduction f(in<int> x) { }", "a reduction names the type of its result.");
  expect_refused("kernel (inout<int> x) { }", "the name of a kernel is missing before '('.");
  expect_refused("kernel f(inout<int>) { }", "the name of a parameter is missing before ')'.");
  expect_refused("kernel f(inout<int> x { }", "')' is missing before '{'.");
  expect_refused("kernel f(inout x) { }", "'inout' needs the type of the elements.");
  expect_refused("kernel f(inout<> x) { }", "a type is missing before '>'.");
  expect_refused("kernel f(float* x) { }", "a kernel has no pointers and no references.");
  expect_refused("kernel f(float x[3]) { }", "Declare an array as in<float>");
  expect_refused("kernel f(inout<int> x, int x) { }", "'x' is declared twice in one scope.");
  expect_refused("kernel f(inout<int> x) { } kernel f(inout<int> x) { }",
                 "the text has a second kernel named 'f'.");
  expect_refused("kernel f(inout<int> x) {", "the text ends where '}' is missing.");
  expect_refused("kernel f(inout<int> x) { } }", "'}' cannot begin a kernel.");
}

TEST(ParserMistakes, OfNamesThatATranslationCannotHave) {
  expect_refused("kernel local(inout<int> x) { }", "a kernel cannot be named 'local'");
  expect_refused("kernel f(inout<int> float4) { }", "a parameter cannot be named 'float4'");
  expect_refused_in_element("int threadIdx = 1;",
                            "which is a word of C, C++, OpenCL C or CUDA C++");
  expect_refused_in_element("int template = 1;", "a variable cannot be named 'template'");
  expect_refused_in_element("int sqrt = 1;", "'sqrt', which is a word of the language.");
  expect_refused_in_element("int size = 1;", "'size', which is a word of the language.");
  expect_refused_in_element("int tern_i = 1;", "names that begin with 'tern_'");
  expect_refused_in_element("int __i = 1;", "names that begin with 'tern_'");
  expect_refused_in_element("int _I = 1;", "names that begin with 'tern_'");
  expect_refused("block f(inout<int> x) { shared<int, 3> half; }",
                 "a shared array cannot be named 'half'");
}

TEST(ParserMistakes, OfUnknownNames) {
  expect_refused_in_element("y = zebra;", "'zebra' is not declared. Declare it before");
  expect_refused_in_element("float width = 1; y = widht;",
                            "'widht' is not declared. The nearest known name is 'width'.");
  expect_refused_in_element("y = sqr(x);", "name is 'sqrt'.");
  expect_refused_in_element("y = sqrtf(x);", "'sqrtf' is not known. Write 'sqrt'.");
  expect_refused_in_kernel("y[threadIdx.x] = 1;", "Write 'thread.x'.");
  expect_refused_in_kernel("atomicAdd(c, 0, 1);", "Write 'atomic_add'.");
  expect_refused_in_block("__syncthreads();", "all threads of a block finish a loop over threads");
  expect_refused_in_element("y = std::sqrt(x);", "Write the name without 'std::'.");
  expect_refused_in_element("switch (n) { }", "the language has no 'switch'.");
  expect_refused_in_element("{ int m = 1; } n = m;", "'m' is not declared.");
  expect_refused_in_element("for (int i = 0; i < 2; ++i) ; n = i;", "'i' is not declared.");
  expect_refused_in_element("int m = m;", "'m' is used in its own initial value.");
}

TEST(ParserMistakes, OfTypes) {
  expect_refused_in_element("uint m = 1;",
                            "'uint' is not a type of the language. Write 'unsigned'.");
  expect_refused_in_element("ulong m = 1;", "Write 'size_t'.");
  expect_refused("kernel f(in<long> x) { }", "Write 'int64_t'.");
  expect_refused_in_element("unsigned long m = 1;", "'unsigned long' is not a type");
  expect_refused_in_element("unsigned char m = 1;", "Write 'uint8_t'.");
  expect_refused_in_element("flaot m = 1;", "Write 'float'.");
  expect_refused_in_element("banana m = 1;", "The types are bool, int");
  expect_refused_in_element("for (uint i = 0; i < 1; ++i) ;", "Write 'unsigned'.");
  expect_refused_in_element("auto m = 1;", "Write the type of the variable.");
  expect_refused_in_element("y = float;", "the type 'float' is not a value.");
  expect_refused_in_element("y = float();", "the cast has no value.");
}

TEST(ParserMistakes, OfDeclarations) {
  expect_refused_in_element("int m = 1; float m = 2;", "'m' is declared twice in one scope.");
  expect_refused_in_element("int x = 1;", "'x' is declared twice in one scope.");
  expect_refused_in_element("for (int i = 0; i < 1; ++i) { int i = 2; }", "'i' is declared twice");
  expect_refused_in_element("const int m;", "the constant 'm' has no value.");
  expect_refused_in_element("int m[4];", "a variable is one value.");
  expect_refused_in_element("int *m = 1;", "the language has no pointers");
  expect_refused_in_element("shared<int, 4> t;", "only a block kernel has shared arrays");
}

TEST(ParserMistakes, OfWrites) {
  expect_refused_in_element("x = 1;", "'x' is declared in<float>, so the kernel cannot write it.");
  expect_refused_in_element("x += 1;", "'x' is declared in<float>");
  expect_refused_in_element("++k;", "'k' is declared in<int>");
  expect_refused_in_element("k--;", "'k' is declared in<int>");
  expect_refused_in_kernel("x[0] = 1;", "'x' is declared in<float>");
  expect_refused_in_element("const int m = 1; m = 2;", "'m' is const");
  expect_refused("element f(inout<int> x, const int n) { n = 2; }", "'n' is const");
  expect_refused_in_element("3 = n;", "that is neither a variable nor an element");
  expect_refused_in_element("n + 1 = 3;", "that is neither a variable nor an element");
  expect_refused_in_element("float(a) += 3;", "the name of a variable is missing before '('");
  expect_refused_in_element("(float)a = 3;", "that is neither a variable nor an element");
  expect_refused_in_element("+n = 3;", "that is neither a variable nor an element");
  expect_refused_in_element("++1;", "that is neither a variable nor an element");
  expect_refused_in_element("bool q = true; ++q;", "'++' needs a number");
  expect_refused("kernel f(in<int> x) { }", "the kernel writes nothing.");
  expect_refused("element f(in<int> x) { int m = x; }", "the kernel writes nothing.");
  expect_refused("element f(float s) { }", "the kernel has no array, so it has no elements.");
}

TEST(ParserMistakes, OfReadsOfWhatWasNotWritten) {
  constexpr std::string_view sentence =
      "'y' is declared out<float>, and the kernel reads it before it assigns it. Declare it "
      "inout<float>.";
  expect_refused("element f(out<float> y) { y += 1; }", sentence);
  expect_refused("element f(out<float> y) { y = y + 1; }", sentence);
  expect_refused("element f(out<float> y) { ++y; y = 1; }", sentence);
  expect_refused("element f(out<float> y) { if (y > 0) y = 1; }", sentence);
  expect_refused("kernel f(out<float> y) { y[0] += 1; }", sentence);
  expect_refused("kernel f(out<float> y, inout<float> z) { z[0] = y[0]; }", sentence);
  expect_refused("kernel f(part<int> y) { y[0] += 1; }", "'y' is declared part<int>");
  expect_refused("kernel f(out<int> y) { y[y[0]] += 1; }", "'y' is declared out<int>");
  expect_refused("element f(out<float> y) { }", "and the kernel never assigns it.");
  expect_refused("kernel f(out<float> y, inout<float> z) { z[0] = 1; }",
                 "'y' is declared out<float>, and the kernel never assigns it.");
  // The read may come after the write of another turn.
  EXPECT_EQ(message_of("kernel f(out<float> y) { if (y[0] > 0) y[1] = 1; }"), "accepted");
}

TEST(ParserMistakes, OfElements) {
  expect_refused_in_element("y = x[0];", "'x' is already the element at its own index.");
  expect_refused_in_kernel("y = 1;", "'y' is an array. Write 'y[i]'");
  expect_refused_in_kernel("y[x[0]] = 1;", "an index is an integer, and this one is 'float'.");
  expect_refused_in_kernel("y[-1] = 1;", "'y' has no element at this index.");
  expect_refused_in_kernel("a[0] = 1;", "'a' is one value and has no elements.");
  expect_refused_in_kernel("y[0][1] = 1;", "only an array has elements.");
  expect_refused_in_block("shared<int, 4> t; int m = t[4];", "'t' has no element at this index.");
  expect_refused_in_block("shared<int, 4> t; int m = t;", "'t' is an array.");
  expect_refused_in_kernel("y[0] = size(a);", "'size' needs the name of an array, and 'a' is not");
  expect_refused_in_kernel("y[0] = size(3);", "'size' needs the name of an array");
  expect_refused_in_kernel("y[0] = size(zebra);", "'zebra' is not declared.");
}

TEST(ParserMistakes, OfOperators) {
  expect_refused_in_element("y = x % 2;",
                            "'%' needs integers, and one of its operands is 'float'.");
  expect_refused_in_element("n = 1 << a;", "'<<' needs integers");
  expect_refused_in_element("y |= 1;", "'|=' needs integers");
  expect_refused_in_element("n = ~a;", "'~' needs an integer, and its operand is 'float'.");
  expect_refused_in_element("n = k / 0;", "'/' divides an integer by zero.");
  expect_refused_in_element("n %= 2 - 2;", "'%=' divides an integer by zero.");
  expect_refused_in_element("const int m = 0; n = 3 / m;", "divides an integer by zero.");
  expect_refused_in_element("n = 1 << 32;", "'<<' shifts a number of 32 bits");
  expect_refused_in_element("n >>= -1;", "'>>=' shifts a number of 32 bits");
  EXPECT_EQ(message_of("element f(out<float> y) { y = 1.0f / 0; }"), "accepted") << "infinity";
  EXPECT_EQ(message_of("element f(out<int64_t> y) { y = 1l << 63; }"), "accepted");
  expect_refused_in_element("n = &k;", "needs pointers");
  expect_refused_in_element("n = *k;", "needs pointers");
  expect_refused_in_element("n = 1, y = 2;", "The language has no operator ','.");
  expect_refused_in_element("n = x.z;", "only thread, block, index, block_size and grid_size");
  expect_refused_in_element("n = 1 +;", "a value is missing before ';'.");
  expect_refused_in_element("n = (1;", "')' is missing before ';'.");
  expect_refused_in_element("y = n ? 1;", "':' is missing before ';'.");
  expect_refused_in_element("n = 1 n = 2;", "';' is missing before 'n'.");
}

TEST(ParserMistakes, OfCalls) {
  expect_refused_in_element("y = pow(x);", "number of arguments of 'pow' is 1 instead of 2.");
  expect_refused_in_element("y = sqrt();", "number of arguments of 'sqrt' is 0 instead of 1.");
  expect_refused_in_element("y = fma(x, x, x, x);", "is 4 instead of 3.");
  expect_refused_in_element("y = sqrt(k);", "'sqrt' takes float or double, and its argument is");
  expect_refused_in_element("y = abs(1u);", "'abs' takes a number with a sign");
  expect_refused_in_element("y = sqrt;", "the function 'sqrt' is not a value.");
  expect_refused_in_element("y = a(1);", "'a' is not a function.");
  expect_refused_in_element("y = (a)(1);", "only a function can be called.");
}

TEST(ParserMistakes, OfAtomics) {
  expect_refused_in_kernel("atomic_add(x, 0, 1);", "'x' is declared in<float>, and an atomic");
  expect_refused_in_kernel("atomic_add(p, 0, 1);", "'p' is declared part<float>");
  expect_refused("kernel f(out<int> o) { atomic_add(o, 0, 1); }",
                 "'o' is declared out<int>, and an atomic function reads and writes it. Declare it "
                 "inout<int>.");
  expect_refused_in_kernel("atomic_min(y, 0, 1);", "'atomic_min' cannot work on 'y'");
  expect_refused_in_kernel("atomic_add(bytes, 0, 1);", "whose elements are 'uint8_t'");
  expect_refused_in_kernel("atomic_add(c, 1);", "'atomic_add' is 2 instead of 3.");
  expect_refused_in_kernel("atomic_compare_exchange(c, 0, 1);", "is 3 instead of 4.");
  expect_refused_in_kernel("atomic_add(c, a, 1);", "an index is an integer");
  expect_refused_in_kernel("atomic_add(n, 0, 1);", "'atomic_add' needs the name of an array");
  expect_refused_in_element("atomic_add(y, 0, 1);", "'atomic_add' needs an index");
  expect_refused_in_block("atomic_add(c, 0, 1);", "writes memory outside of a loop over threads");
}

TEST(ParserMistakes, OfPositions) {
  expect_refused_in_element("n = index.x;", "'index' is not known here");
  expect_refused_in_element("n = int(size(x));", "'size' is not known here");
  expect_refused_in_reduction("identity = 0; map = block.x; combine = a + b;",
                              "'block' is not known here");
  expect_refused_in_block("int m = index.x;", "Write block.x * block_size.x + thread.x.");
  expect_refused_in_block("int m = thread.x;", "'thread' is only known in a loop over threads.");
  expect_refused_in_kernel("n = index;", "Write index.x, index.y or index.z.");
  expect_refused_in_kernel("n = thread.w;", "'thread' has no part 'w'.");
  expect_refused_in_kernel("n = threads;", "'threads' is not a value.");
}

TEST(ParserMistakes, OfLoopsOverThreads) {
  constexpr std::string_view loop = "for (auto thread : threads) { ";
  expect_refused_in_kernel(std::string(loop) + "}", "only a block kernel has loops over threads");
  expect_refused_in_block(std::string(loop) + std::string(loop) + "} }",
                          "a loop over threads is inside of another one.");
  expect_refused_in_block("for (auto t : threads) { }", "'thread' is missing before 't'.");
  expect_refused_in_block("for (auto thread : blocks) { }",
                          "'threads' is missing before 'blocks'.");
  expect_refused_in_block("y[0] = 1;", "'=' writes memory outside of a loop over threads");
  expect_refused_in_block("shared<int, 2> t; ++t[0];", "'++' writes memory outside of a loop");
  expect_refused_in_block("int m = 0; " + std::string(loop) + "m = 1; }",
                          "'m' belongs to the whole block");
  expect_refused_in_block(std::string(loop) + "n += 1; }", "'n' belongs to the whole block");
  expect_refused_in_block(std::string(loop) + "int m = 1; } n = m;", "'m' is not declared.");
  expect_refused_in_block("return;", "would end the whole block.");
  expect_refused_in_block("while (true) " + std::string(loop) + "break; }",
                          "'break' is in no loop of the thread.");
  expect_refused_in_block(std::string(loop) + "return; }",
                          "Use 'continue' to end the turn of one thread.");
  expect_refused_in_element("break;", "'break' is in no loop. Remove it.");
  expect_refused_in_element("while (n) ; continue;", "'continue' is in no loop. Remove it.");
  expect_refused_in_element("return 3;", "a kernel returns no value.");
}

TEST(ParserMistakes, OfSharedArrays) {
  expect_refused_in_block("for (auto thread : threads) { shared<int, 3> t; }",
                          "Declare the array before the loop.");
  expect_refused_in_block("shared<float, 12289> t;", "need more than 49152 bytes");
  expect_refused_in_block("shared<double, 6144> t; shared<int8_t, 1> u;", "with 'u', the shared");
  expect_refused_in_block("shared<double, 0xffffffffffffffff> t;", "need more than 49152 bytes");
  for (const std::string_view size : {"0", "-1", "n", "1.5", "1 / 0"}) {
    const std::string message =
        message_of("block f(inout<int> y, int n) { shared<int, " + std::string(size) + "> t; }");
    EXPECT_TRUE(message.find("is a constant of at least 1") != message.npos ||
                message.find("divides an integer by zero") != message.npos)
        << size << ": " << message;
  }
  expect_refused_in_block("shared<int, 3> t = 1;", "a shared array has no initial values.");
  expect_refused_in_block("shared<uint, 3> t;", "Write 'unsigned'.");
}

TEST(ParserMistakes, OfReductions) {
  expect_refused_in_reduction("map = x; combine = a + b;", "the reduction has no 'identity'.");
  expect_refused_in_reduction("identity = 0; combine = a + b;", "the reduction has no 'map'.");
  expect_refused_in_reduction("identity = 0; map = x;", "the reduction has no 'combine'.");
  expect_refused_in_reduction("map = x; map = x;", "'map' has a value already.");
  expect_refused_in_reduction("int m = 1;", "'int' is not a part of a reduction.");
  expect_refused_in_reduction("identity = 0; map = a;", "'a' is only known in 'combine'.");
  expect_refused_in_reduction("identity = b;", "'b' is only known in 'combine'.");
  expect_refused_in_reduction("identity = s;", "'identity' cannot use the parameter 's'");
  expect_refused_in_reduction("combine = a + x;", "'combine' cannot use the parameter 'x'");
  expect_refused_in_reduction("map = x * size(x);", "'size' is not known here");
  expect_refused_in_reduction("map = x = 1;", "a reduction only computes.");
  expect_refused_in_reduction("map = s++;", "a reduction only computes.");
  expect_refused_in_reduction("map = x[0];", "'x' is already the element at its own index.");
  expect_refused("reduction<float> f(float s) { identity = 0; map = s; combine = a; }",
                 "the kernel has no array");
  expect_refused("reduction<float> f(out<float> x) { }", "a reduction only reads its arrays.");
  expect_refused("reduction<float> f(in<float> a) { }", "Rename the parameter 'a'.");
}

// --- Limits

TEST(ParserMistakes, OfTooManyArguments) {
  std::string parameters = "inout<int> x";
  for (int i = 0; i < 63; ++i) parameters += ", int p" + std::to_string(i);
  expect_refused("kernel f(" + parameters + ") { }",
                 "the parameters of the kernel are 65 arguments");
  parameters = "in<int> x0";
  for (int i = 1; i < 32; ++i) parameters += ", in<int> x" + std::to_string(i);
  expect_refused("reduction<int> f(" + parameters + ") { }", "are 65 arguments");
}

TEST(ParserMistakes, OfDeepNesting) {
  const auto repeated = [](std::string_view part, int count) {
    std::string made;
    for (int i = 0; i < count; ++i) made += part;
    return made;
  };
  constexpr std::string_view nested = "is nested more than 200 levels deep.";
  for (const std::string_view part :
       {"(", "-", "~(", "sqrt(", "{", "if (n) ", "if (n) ; else ", "while (n) ", "do ", "++",
        "n = ", "n ? ", "n ? 1 : ", "(float)", "int(", "for (;;) ", "1 << (", "n += "}) {
    const bool is_statement = part[0] == '{' || part[0] == 'w' || part[0] == 'd' ||
                              part.starts_with("if") || part.starts_with("for");
    const std::string deep = repeated(part, 20000);
    expect_refused_in_element(is_statement ? deep : "n = " + deep, nested);
  }
  expect_refused_in_kernel("n = " + repeated("c[", 20000), nested);
  EXPECT_EQ(message_of("element f(out<int> y) { y = " + repeated("- ", 190) + "1; }"), "accepted");
  expect_refused_in_element("n = " + repeated("- ", 200) + "1;", nested);
  // Operators in a row make a deep tree without any nesting in the text.
  EXPECT_EQ(message_of("element f(out<int> y) { y = 1" + repeated(" + 1", 400) + "; }"),
            "accepted");
  expect_refused_in_element("n = 1" + repeated(" + n", 500) + ";",
                            "more than 500 operators in a row.");
  expect_refused_in_element("n" + repeated("++", 20000) + ";", "neither a variable nor");
}

TEST(ParserMistakes, OfLongNamesStayReadable) {
  const std::string name(128, 'q');
  const std::string message = message_of("kernel " + name + "(in<float> x) { " + name + "; }");
  EXPECT_NE(message.find("of kernel 'qqq"), message.npos) << message;
  EXPECT_NE(message.find("is not declared. Declare it"), message.npos) << message;
  EXPECT_LT(message.size(), 200u) << message;
}

}  // namespace
}  // namespace tern::language
