// Goal    Each element renders as it should, what is no element stays as it is written, and every way of cutting a text into
//         pieces renders the same.
#include "terminal/markdown_renderer.h"

#include "base/rng.h"
#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

std::string render(std::string_view text) {
  MarkdownRenderer renderer;
  std::string out = renderer.append(text);
  return out + renderer.finish();
}

std::string render_in_pieces(std::string_view text, Rng& rng, uint64_t longest) {
  MarkdownRenderer renderer;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = 1 + rng.below(longest);
    out += renderer.append(text.substr(at, size));
    at += size;
  }
  return out + renderer.finish();
}

// {b}bold{/b} {i}italic{/i} {c}coloured{/c} {d}dim{/d} stand for their sequences; bold and dim have one end.
std::string marked(std::string text) {
  for (const auto& [sequence, name] : {std::pair{"\x1b[1m", "<b>"}, {"\x1b[22m", "</b>"}, {"\x1b[3m", "<i>"}, {"\x1b[23m", "</i>"},
                                       {"\x1b[36m", "<c>"}, {"\x1b[39m", "</c>"}, {"\x1b[2m", "<d>"}}) {
    for (size_t at; (at = text.find(sequence)) != std::string::npos;) text.replace(at, std::string_view(sequence).size(), name);
  }
  return text;
}

std::string shown_markdown(std::string_view text) { return marked(render(text)); }

}  // namespace

TEST_CASE("markdown: emphasis and code") {
  CHECK(shown_markdown("a **b** c\n") == "a <b>b</b> c\n");
  CHECK(shown_markdown("*a* _b_ __c__") == "<i>a</i> <i>b</i> <b>c</b>");
  CHECK(shown_markdown("***a***") == "<b><i>a</i></b>");
  CHECK(shown_markdown("**a *b* `c`**.") == "<b>a <i>b</i> <c>c</c></b>.");
  CHECK(shown_markdown("`*a*` ``b ` c``") == "<c>*a*</c> <c>b ` c</c>");
  CHECK(shown_markdown("vol**ume**") == "vol<b>ume</b>");
  CHECK(shown_markdown("**潮**") == "<b>潮</b>");
}

TEST_CASE("markdown: what is no element stays as it is written") {
  for (const char* text : {"2 * 3 * 4\n", "2*3*4\n", "f(*args, **kwargs)\n", "snake_case_name __init\n", "a ** b\n", "`open\n",
                           "**open\nnext**\n", "1. one\n2. two\n", "#tag\n", "#######\n", "| a | b |\n|---|---|\n", "-x\n", "--flag\n", "a\tb\n",
                           "", "\n\n", "  \n", "*\n", "`", "**", "_", "C:\\dir\n"}) {
    CHECK(shown_markdown(text) == text);
  }
  CHECK(shown_markdown("\\*a\\* \\\\") == "*a* \\");
}

TEST_CASE("markdown: lines") {
  CHECK(shown_markdown("# One **two**\ntext") == "<b>One two</b>\ntext");
  CHECK(shown_markdown("- a\n  * **b**\n+ c\n") == "• a\n  • <b>b</b>\n• c\n");
  CHECK(shown_markdown("> # a\n>b\n") == "<d>│ </b><b>a</b>\n<d>│ </b>b\n");
  CHECK(shown_markdown("---\nx").starts_with("<d>───"));
  CHECK(shown_markdown("* * *").starts_with("<d>───"));
  CHECK(shown_markdown("**a**\n") == "<b>a</b>\n");
}

TEST_CASE("markdown: fenced blocks") {
  CHECK(shown_markdown("```py\na *b* # c\n\n``\n```\n**x**\n") ==
        "<d>```py</b>\n<c>a *b* # c</c>\n\n<c>``</c>\n<d>```</b>\n<b>x</b>\n");
  CHECK(shown_markdown("~~~~\n~~~\n```\n~~~~~  \nx") == "<d>~~~~</b>\n<c>~~~</c>\n<c>```</c>\n<d>~~~~~  </b>\nx");
  CHECK(shown_markdown("```\nnever closed") == "<d>```</b>\n<c>never closed</c>");
  CHECK(shown_markdown("```a``` b\n") == "<c>a</c> b\n");
  CHECK(shown_markdown("  ```\n  x\n  ```\n") == "<d>  ```</b>\n<c>  x</c>\n<d>  ```</b>\n");
}

TEST_CASE("markdown: a marker without its end holds the line back only so far") {
  const std::string text = "**" + std::string(MarkdownRenderer::kMaxHeldBytes, 'x');
  MarkdownRenderer renderer;
  CHECK(renderer.append("**" + std::string(MarkdownRenderer::kMaxHeldBytes - 3, 'x')).empty());
  CHECK_FALSE(renderer.append("xx").empty());
  CHECK(render(text) == text);
}

TEST_CASE("markdown: every cut renders the same, and nothing is left on at a line's end") {
  Rng rng(test_seed());
  const std::string_view words[] = {"*", "**", "***", "_", "__", "`", "``", "```", "~~~", "# ", "## ", "- ", "+ ", "> ", "---", "\\", " ",
                                    "  ", "\n", "\n", "\n\n", "word", "潮", "1. ", "a", ".", "(", "\t", "long text of a line "};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const uint64_t num_words = rng.below(round % 10 == 0 ? 120 : 16);
    for (uint64_t i = 0; i < num_words; ++i) text += words[rng.below(std::size(words))];
    const std::string whole = render(text);
    INFO(text);
    REQUIRE(marked(render_in_pieces(text, rng, 1)) == marked(whole));
    REQUIRE(marked(render_in_pieces(text, rng, 7)) == marked(whole));
    for (const auto& [on, off] : {std::pair{"<i>", "</i>"}, {"<c>", "</c>"}}) {
      const std::string m = marked(whole);
      size_t num_on = 0, num_off = 0;
      for (size_t at = 0; (at = m.find(on, at)) != std::string::npos; ++at) ++num_on;
      for (size_t at = 0; (at = m.find(off, at)) != std::string::npos; ++at) ++num_off;
      REQUIRE(num_on == num_off);
    }
  }
}

}  // namespace spate
