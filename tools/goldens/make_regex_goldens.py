#!/usr/bin/env python3
"""Makes test/goldens/tokenizer/regex.json: where Oniguruma, as the `tokenizers` library runs it, cuts texts.

    python tools/goldens/make_regex_goldens.py

Made with tokenizers 0.23.3. One entry a pattern: {"pattern", "cuts": [[ends of the pieces, in bytes] for each text], or
"error"}; the texts come first. Patterns go through one construct after the other that regular expression dialects differ in;
the texts have characters that were in Unicode 14 already.
"""

import json
import pathlib

from tokenizers import Regex, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "tokenizer" / "regex.json"

TEXTS = [
    "Hello, World! foo_bar x1y2 a-b.c:d",
    "one\ntwo\r\nthree\n\n four \t five\u000bsix\u000cseven\u0085eight\u2028nine\n",
    "x\u00b2 \u00b3y \u00b9 \u00bd\u00bc \u2460 \u2167 \u0663\u0664 a\u0301b \u00aa \u203f",
    "a\ufe0f\u200d b\u200cc \u2764\ufe0f \U0001F600x\U0001F1E9\U0001F1EA \u24b6 \U0001F130",
    "stra\u00dfe STRASSE strasse \u017fs \u212a k K \ufb01 fi FF ff \u0130 i\u0307 \u01f0 j\u030c",
    "\u4e2d\u6587 \u3042\u30ab \ud55c\uae00 \u0395\u03bb\u03bb \u0416 \u05d0 \u0e01\u0e33 \u0915\u094d\u0937",
    "aaa aaaa a{,2} a{2} {x} x{1,} {} b{ ab}abab",
    "[x] ]a[ a]b \\ ^ - & && a&b | (p) $1 .. ** ++ ?",
    "don't WE'LL I'm they've 'S x'T 12345 1234 12 1 00.5e-3",
    "\u00a0\u3000\u200b\ufeff  x \u1680y\u180ez \u001f \u0000\u0007\u001b\u0008",
    "\u20ac$+<=>^`|~ \u00a7\u00b6\u2026\u00bf \uff01 \u2018q\u2019 _\u2040",
    "a", "", "\n", "ss",
]

PATTERNS = [
    # Classes of characters by escape.
    r"\w", r"\W", r"\w+", r"\W+", r"[\w]+", r"[\W]+", r"[^\w]+", r"[^\W]+", r"\d+", r"\D+", r"[\d]", r"[^\d]+", r"[\D]+", r"[^\D]+",
    r"\s+", r"\S+", r"[\s]+", r"[\S]+", r"[^\s]+", r"[^\S]+", r"\h+", r"\H+", r"[\h]+", r"[\H]+", r"[^\h]+", r"\v", r"[\v]", r"[^\v]+",
    r"[\w\s]+", r"[\W\d]+", r"[^\W\d]+", r"[^\W_]+", r"[^\S\n]+", r"[\S\n]+", r"[\s\S]", r"[\w\W]+", r"[^\w\s]+", r"\w+|[^\w\s]+",
    # Borders.
    r"\b", r"\B", r"\b\w+\b", r"\bx", r"\b.\b", r"\w\b", r"\B\w", r"(?<=\b)a", r"\b\S+\b", r"\b\d+\b",
    # Anchors and line ends.
    r"^", r"$", r"^\w+", r"\w+$", r"\s+$", r"\A\w+", r"\w+\z", r"\w+\Z", r"^$", r".$", r".", r".+", r"(?m).", r"(?m).+", r"(?m:.+)x",
    r"(?-m).+", r"(?m)a.b", r"(?mi)t.T", r"(?s).", r"(?s:.+)", r"(?x) a b", r"(?im-x:A)", r"(?i-m:A.)",
    # Repetition.
    r"a{2}", r"a{,2}", r"a{2,}", r"a{1,2}", r"a{,2}?", r"a{2}?", r"a{1,2}?", r"a{2,1}", r"a{1,2}+", r"a{2}+", r"a{,}", r"a{", r"a{x}",
    r"{", r"{x}", r"x{1,}", r"a*+a", r"a++b", r"a?+a", r"a*?b", r"a+?", r"a??b", r"(?:ab){1,2}", r"(ab)+", r"a**", r"a+*", r"(?:a{,1}){2}",
    r"\w{,3}", r"[a-c]{,2}x", r"a{0}", r"a{0,0}b", r"\d{1,3}(?=(?:\d{3})*\b)",
    # Classes in brackets.
    r"[abc]+", r"[^abc]+", r"[a-c]+", r"[[a-c][x-z]]+", r"[[a-c]x-z]+", r"[^[a-c][x-z]]+", r"[a[^b]]+", r"[[^a]&&[^b]]+", r"[a-z&&[aeiou]]+",
    r"[a-z&&[^aeiou]]+", r"[^a-z&&[aeiou]]+", r"[\w&&[^\d]]+", r"[\w&&\S]+", r"[a-z&&\w&&[^x]]+", r"[]a]+", r"[^]a]+", r"[a\]b]+", r"[\[\]]+",
    r"[a-]+", r"[-a]+", r"[^-a]+", r"[a\-c]+", r"[\w-]+", r"[-\w]+", r"[\w-.]+", r"[\d-a]+", r"[a-\d]+", r"[a-c-e]+", r"[.-a-c]+", r"[+--]+",
    r"[&]+", r"[a&b]+", r"[&&a]", r"[a&&]", r"[|.*+?()$^{}]+", r"[\b]", r"[\n\t\r]", r"[\e\a\f]", r"[\x00-\x1f]+", r"[\x{4e00}-\x{9fff}]+",
    r"[\u4e00-\u9fff]+", r"[一-龥]+", r"[぀-ヿ]+", r"[\p{L}\p{N}]+", r"[^\p{L}\p{N}]+", r"[\P{L}]+", r"[^\P{L}]+", r"[\p{^L}]+", r"[\p{Han}a-c]+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[\p{L}--[a-z]]", r"[^\s\p{L}]+[\r\n]*", r"[z-a]", r"[", r"[a", r"[]", r"[^]",
    # POSIX names.
    r"[[:alpha:]]+", r"[[:alnum:]]+", r"[[:digit:]]+", r"[[:punct:]]+", r"[[:space:]]+", r"[[:upper:]]+", r"[[:lower:]]+", r"[[:word:]]+",
    r"[[:graph:]]+", r"[[:print:]]+", r"[[:cntrl:]]+", r"[[:xdigit:]]+", r"[[:blank:]]+", r"[[:ascii:]]+", r"[[:^alpha:]]+", r"[[:^space:]]+",
    r"[^[:alpha:]]+", r"[[:alpha:][:digit:]_]+", r"[^[:punct:]\s]+", r"[[:^graph:]]+", r"[[:nosuch:]]", r"[:alpha:]+", r"[[:alpha:]-]+",
    # Properties.
    r"\p{L}+", r"\p{Lu}", r"\p{^Lu}+", r"\P{Lu}+", r"\P{^Lu}", r"\p{N}+", r"\p{Nd}+", r"\p{M}", r"\p{P}+", r"\p{S}+", r"\p{Z}+", r"\p{C}", r"\p{Han}+",
    r"\p{Hiragana}|\p{Katakana}", r"\p{Greek}+", r"\p{Cyrillic}", r"\p{Latin}+", r"\p{Any}", r"\p{Letter}+", r"\p{Alpha}", r"\pL", r"\p{Emoji}",
    # Case.
    r"(?i)ss", r"(?i)SS", r"(?i)ß", r"(?i)fi", r"(?i)ff", r"(?i)st", r"(?i)s", r"(?i)k", r"(?i:s)s", r"(?i)strasse", r"(?i)[k]+", r"(?i)[a-z]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"(?i)'s|x", r"a(?i)b|C", r"(?i)A|B", r"A|(?i)b|C", r"(?:A|(?i)b)c", r"(?i)\u0130", r"(?i)\x{17F}", r"(?i)[ß]",
    r"(?i)ab(?-i)CD", r"(?i)(?-i:s)s", r"(?i)é", r"(?i)λ", r"(?i)s{2}", r"(?i)i\u0307", r"(?i)(?:s)s", r"(?i)s(?:)s", r"(?i)s|s", r"(?i)[s]s", r"(?i)s?s",
    # Escapes.
    r"\t|\n|\r|\f", r"\a|\e", r"\x41", r"\x{48}", r"\x48e", r"\u0048", r"\x", r"\x{}", r"\u12", r"\xff", r"\xe4\xb8\xad", r"\101", r"\0", r"\07", r"\cA",
    r"\C-A", r"\M-a", r"\-", r"\/", r"\ ", r"\.", r"\\", r"\_", r"\"", r"\中", r"\R", r"\X", r"\K", r"a\Kb", r"\G\w", r"\N", r"\O", r"\y", r"\Y",
    r"\Qa.b\E", r"\i", r"\l", r"\z", r"\o{101}", r"\E", r"\1", r"(a)\1", r"(?<n>a)\k<n>", r"(?<n>a)", r"(?<n>a)(b)", r"(?'n'a)", r"\g<0>",
    # Groups.
    r"(?:a|b)+", r"(?=a)", r"(?!a)\w", r"(?<=a)b", r"(?<!a)b", r"(?<=a|bc)d", r"(?<=a+)b", r"(?>a+)b", r"(?#note)a", r"(?P<n>a)", r"(?|a|b)", r"(?(1)a|b)",
    r"(?~ab)", r"(*FAIL)", r"(?R)", r"()", r"(a", r"a)", r"(?", r"(?<", r"a|", r"|a", r"", r"?", r"*a", r"+", r"a\\", "\\",
    # As published models have them.
    r"\s+(?!\S)|\s+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+", r"[0-9][0-9][0-9]", r"\p{N}{1,3}",
    r" ?(?!(?:[^\s\p{Han}]+))\S", r"[A-Za-z]+|[0-9]|.", r"(?=\p{Lu})", r"[一-龥぀-ゟ゠-ヿ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
]


def cuts(pattern, text):
    end, ends = 0, []
    for piece, _ in pre_tokenizers.Split(Regex(pattern), behavior="isolated").pre_tokenize_str(text):
        end += len(piece.encode())
        ends.append(end)
    return ends


def main():
    entries = []
    for pattern in PATTERNS:
        try:
            entries.append(dict(pattern=pattern, cuts=[cuts(pattern, text) for text in TEXTS]))
        except Exception as error:  # Oniguruma's own message
            entries.append(dict(pattern=pattern, error=str(error)))
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    OUT.write_text('{"texts": ' + json.dumps(TEXTS) + ',\n"patterns": [\n' + lines + "\n]}\n")
    print(len(entries), "patterns,", sum("error" in e for e in entries), "errors")


main()
