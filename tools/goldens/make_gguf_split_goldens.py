#!/usr/bin/env python3
"""What the splits that tokenizer.ggml.pre names make of texts: test/goldens/tokenizer/gguf_splits.json.

    python tools/goldens/make_gguf_split_goldens.py PATH/ggml-vocab-gpt-2.gguf

Needs tokenizers and gguf. Every split runs over the vocabulary and merges of GPT-2, with the pre-tokenizer that the
tokenizer.json of a model of that name has. [name, [[text, [ids]], ...]] for each.
"""

import json
import pathlib
import sys

from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "tokenizer" / "gguf_splits.json"
WORD = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
WORD_UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


SPLITS = {
    "mpt": [gpt2],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), gpt2],
    "falcon": [pre_tokenizers.Punctuation("contiguous"), gpt2, split("[0-9][0-9][0-9]")],
    "deepseek-coder": [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                       pre_tokenizers.Digits(individual_digits=True), byte_level],
    "chatglm-bpe": [split(f"{SHORT}|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|\\p{{N}}{{1,3}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|{TAIL}"), byte_level],
    "stablelm2": [split(f"{SHORT}|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|{TAIL}"), byte_level],
    "qwen35": [split(f"{SHORT}|[^\\r\\n\\p{{L}}\\p{{N}}]?[\\p{{L}}\\p{{M}}]+|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{M}}\\p{{N}}]+[\\r\\n]*|{TAIL}"), byte_level],
    "gpt-4o": [split(f"[^\\r\\n\\p{{L}}\\p{{N}}]?{WORD}{SHORT}?|[^\\r\\n\\p{{L}}\\p{{N}}]?{WORD_UPPER}{SHORT}?|\\p{{N}}{{1,3}}| "
                     f"?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]*|{TAIL}"), byte_level],
    "tekken": [split(f"[^\\r\\n\\p{{L}}\\p{{N}}]?{WORD}|[^\\r\\n\\p{{L}}\\p{{N}}]?{WORD_UPPER}|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]*|{TAIL}"),
               byte_level],
    "bloom": [split(" ?[^(\\s|.,!?…。，、।۔،)]+"), byte_level],
    "viking": [split(" ?[^(\\s|.,!?…。，、।۔،)]+"), pre_tokenizers.Digits(individual_digits=True), byte_level],
}
TEXTS = [
    "Hello, y'all! How're YOU'RE doing? I'VE 12345 apples & 3.14 pears.\n\n\tcamelCaseWord XMLHttpRequest HTTPServer2",
    "  three spaces   and  tabs\t\t\nend  ",
    "naïve café Ångström — “quoted” … 你好，世界！ 1234567 こんにちは 안녕하세요 Привет, мир! हिन्दी में १२३ ไทย",
    "for (int i = 0; i < 10; ++i) { a[i] += b->c / d; } // x == y || z != w\r\n<|x|> $5.00 ^~`",
    "🚀 emojis 🦙🦙 e\u0301 combining ٤٥٦ Ⅷ ½ don't DON'T 'twas '",
]


def main():
    fields = GGUFReader(sys.argv[1]).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(line.split(" ", 1)) for line in fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    goldens = []
    for name, steps in SPLITS.items():
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name == "tekken"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        goldens.append([name, [[text, tokenizer.encode(text).ids] for text in TEXTS]])
    OUT.write_text("[" + ",\n".join(json.dumps(golden, separators=(",", ":")) for golden in goldens) + "]\n")
    print(OUT.stat().st_size)


if __name__ == "__main__":
    main()
