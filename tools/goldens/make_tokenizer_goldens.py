#!/usr/bin/env python3
"""Makes test/goldens/tokenizer: small tokenizers of every kind and what Hugging Face `tokenizers` does with them.

    python3 tools/goldens/make_tokenizer_goldens.py [--output test/goldens/tokenizer]

Needs the package tokenizers (made with 0.23.3). Seeded: the same version gives the same files. Each kind gives
<name>.tokenizer.json and <name>.cases.json, an array of [text, ids, ids with special tokens or null, decoded or null]
(null: the same as ids with nothing around, or the same as the text) and of [ids, decoded, decoded without special].
The texts stay within Unicode 13, where all libraries involved agree on categories and normal forms.
"""

import argparse
import base64
import json
import pathlib
import random
import struct
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

SEED = 20
TEXTS_PER_KIND = 480
RANDOM_DECODES_PER_KIND = 80

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
DEEPSEEK_V3 = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
DEEPSEEK_LLM = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳΈ-ΊΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]

PHRASES = {
    "en": ["The river rose in the night and nobody slept.", "Don't you think we've seen THIS before? I'LL wait.",
           "She's sure they're late; he'd rather not say it's over.", "A quick test: 12345 apples, 3.14 pies & 1,000,000 $.",
           "e-mail me at someone@example.com or see https://example.org/a?b=c#d", "It was the DOG'S bowl, wasn't it?"],
    "zh": ["今天天气很好，我们去公园散步吧。", "人工智能正在改变世界！", "一共有1234个苹果，价格是５６元。", "「你好」他說，「再見」。"],
    "ja": ["こんにちは、世界。カタカナとひらがな。", "東京タワーへ行きました！ﾊﾝｶｸもある", "データベースのパスワード"],
    "ko": ["안녕하세요 세계, 반갑습니다.", "한국어 문장은 띄어쓰기가 있다", "\u1112\u1161\u11ab\u1100\u1173\u11af"],
    "ar": ["مرحبا بالعالم، كيف حالك؟", "السَّلَامُ عَلَيْكُمْ ١٢٣"],
    "hi": ["नमस्ते दुनिया, आप कैसे हैं?", "क्षत्रिय ज्ञान श्री १२३४"],
    "th": ["สวัสดีชาวโลก วันนี้อากาศดี", "กินข้าวหรือยัง"],
    "ru": ["Привет, мир! Ёжик в тумане.", "Сколько стоит 100 рублей?", "ПРИВЕТ"],
    "eu": ["Größe, Straße, Ärger über Öl", "L'été à l'hôtel, garçon naïf", "Cửa Việt đẹp lắm", "İstanbul'da ığdır",
           "Ångström e\u0301cole n\u0303o", "ﬁnance ﬂow Ⅳ ½ ① ｆｕｌｌ　ｗｉｄｔｈ", "Αθήνα, ΣΟΦΟΣ"],
    "emoji": ["😀😃😄", "👨‍👩‍👧‍👦 family", "👍🏽 ok", "🇩🇪🇫🇷", "❤️ love", "😶‍🌫️", "a🚀b"],
    "code": ["for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def f(x):\n\treturn x**2  # square\n",
             "SELECT * FROM t WHERE a='b''c';", "{\"key\": [1, 2.5e-3, null]}", "x<-c(1,2)\r\nprint(x)\r\n", "<|a|> </s> <s>",
             "#!/bin/sh\necho \"$HOME\" | wc -l"],
    "space": [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t", " \n ", "\u00a0", "\u3000", "\u2003\u2009",
              " \t\n\r ", "a  b", "a   b", "  a", "a  ", "\n a", "a \n", "\u200b", "\u2028", "\u0085"],
    "odd": ["\u0000", "a\u0000b", "\u0001\u0002", "\ufffd", "\ufeffbom", "\u0301", "\u0301\u0302\u0303", "a\u0300\u0316\u0301",
            "\u200d", "''''", "'S'T'RE", "'ſ", "---===---", "!!!???...", "\x7f", "\u202eabc", "\U0001d54f\U0001d7d8",
            "\U00020000\U0002a6d6", "\ue000", "\uf8ff", "<0x41>", "<0xFF>", "▁▁a", "▁", "Ġa", "##ing", "<unk>", "[UNK] x", "a</w>b"],
    "digits": ["1", "12", "123", "1234", "12345", "1234567890", "3.14159", "1,234.5", "٣٤٥", "१२३४५", "Ⅷ²³", "½¾", "7️⃣"],
}
WORDS = ("water stone river light under between machine learning tokens serve engine the a of and to in is was for on "
         "that with as his they at be this from have or by one had not but what all were when your can said there use "
         "an each which she do how their if will up other about out many then them these so some her would make like "
         "him into time has look two more write go see number no way could people my than first been call who its now "
         "find long down day did get come made may part ing ed er est un re pre tion").split()


def random_char(rng):
    block = rng.choice([(0x20, 0x7e), (0x20, 0x7e), (0xa1, 0x24f), (0x370, 0x3ff), (0x400, 0x52f), (0x5d0, 0x5ea),
                        (0x620, 0x6d3), (0x904, 0x939), (0xe01, 0xe3a), (0x1100, 0x1112), (0x1e00, 0x1eff),
                        (0x2000, 0x206f), (0x20a0, 0x20bf), (0x2190, 0x21ff), (0x2200, 0x22ff), (0x2460, 0x24ff),
                        (0x2580, 0x259f), (0x3000, 0x303f), (0x3041, 0x30ff), (0x4e00, 0x9fa5), (0xac00, 0xd7a3),
                        (0x300, 0x36f), (0xff01, 0xff5e), (0x1f300, 0x1f64f), (0x1d400, 0x1d7ff), (0x0, 0x1f)])
    while True:
        c = chr(rng.randint(*block))
        if unicodedata.category(c) != "Cn":
            return c


def random_text(rng):
    kind = rng.random()
    if kind < 0.35:
        parts = [rng.choice(PHRASES[rng.choice(list(PHRASES))]) for _ in range(rng.randint(1, 3))]
        return rng.choice(["", " ", "  ", "\n"]).join(parts)
    if kind < 0.6:
        separators = [" ", " ", " ", " ", "  ", "\n", ", ", ". ", "-", "'", "\t", "_", ""]
        words = []
        for _ in range(rng.randint(1, 14)):
            word = rng.choice(WORDS)
            words.append(rng.choice([word, word, word.upper(), word.capitalize(), str(rng.randint(0, 99999))]))
            words.append(rng.choice(separators))
        return "".join(words)
    if kind < 0.8:
        return "".join(random_char(rng) for _ in range(rng.randint(1, 16)))
    if kind < 0.9:
        return "".join(rng.choice(["a", "B", "é", "1", "٣", " ", "  ", "\n", "\r", "'", "s", "LL", ".", "!", "中", "\u0301", "😀",
                                   "\u200d", "-", "ſ", "\t", "\u00a0", "क", "ा"]) for _ in range(rng.randint(1, 20)))
    phrase = rng.choice(PHRASES[rng.choice(list(PHRASES))])
    start = rng.randrange(len(phrase))
    return phrase[start:start + rng.randint(1, 12)]


def make_texts(rng, extra=()):
    fixed = [p for group in PHRASES.values() for p in group]
    texts = ["", *extra, *rng.sample(fixed, 60)]
    while len(texts) < TEXTS_PER_KIND:
        text = random_text(rng)
        if rng.random() < 0.25 and extra:
            cut = rng.randint(0, len(text))
            text = text[:cut] + rng.choice(extra) + text[cut:]
        texts.append(text)
    return texts


def training_texts():
    rng = random.Random(SEED + 1)
    return [p for group in PHRASES.values() for p in group] * 3 + [random_text(rng) for _ in range(3000)] + [
        " ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(500)]


def make_charsmap():
    """A double-array trie in SentencePiece's format: NFKC of some blocks, removals, and sequences."""
    rules = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": "", "\ufeff": "", "\u0001": "",
             "e\u0301": "é", "n\u0303": "ñ", "\u1112\u1161\u11ab": "한", "™": "TM", "\u200d": ""}
    for start, end in [(0xff01, 0xff5f), (0x2460, 0x2480), (0xfb00, 0xfb07), (0xbc, 0xbf), (0x2160, 0x2170), (0x1d7ce, 0x1d7e0),
                       (0x212b, 0x212c), (0xb2, 0xb4)]:
        for c in range(start, end):
            rules[chr(c)] = unicodedata.normalize("NFKC", chr(c))
    pool, values = bytearray(), {}
    for key, replacement in rules.items():
        values[key.encode()] = len(pool)
        pool += replacement.encode() + b"\0"
    trie = {}
    for key, value in values.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[-1] = value
    units, used, bases = {0: 0}, {0}, set()

    def place(node, unit):
        labels = [0 if k == -1 else k for k in node]
        base = 1
        while base in bases or any((base ^ label) in used for label in labels) or (unit ^ base) >= 1 << 21:
            base += 1
        bases.add(base)
        units[unit] |= (unit ^ base) << 10
        used.update(base ^ label for label in labels)
        for key, child in node.items():
            if key == -1:
                units[unit] |= 1 << 8
                units[base] = child | 1 << 31
            else:
                units[base ^ key] = key
        for key, child in node.items():
            if key != -1:
                place(child, base ^ key)

    place(trie, 0)
    size = (max(units) | 255) + 1
    blob = struct.pack("<%dI" % size, *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(blob)) + blob + bytes(pool)


def bpe(pre_tokenizer, normalizer=None, decoder=None, vocab_size=1200, specials=(), alphabet=None, trainer_args=None, **model_args):
    tokenizer = Tokenizer(models.BPE(**model_args))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=alphabet or [], **(trainer_args or {}))
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def byte_level(*splits, normalizer=None, add_prefix_space=False, **args):
    last = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not splits)
    steps = [pre_tokenizers.Split(Regex(s), "isolated") if isinstance(s, str) else s for s in splits]
    return bpe(pre_tokenizers.Sequence([*steps, last]) if steps else last, normalizer, decoders.ByteLevel(),
               alphabet=pre_tokenizers.ByteLevel.alphabet(), **args)


def edit(tokenizer, change):
    """The tokenizer with its JSON changed: for fields that the Python classes do not set."""
    fields = json.loads(tokenizer.to_str())
    change(fields)
    return Tokenizer.from_str(json.dumps(fields))


def special(content, **flags):
    return AddedToken(content, special=True, normalized=flags.pop("normalized", False), **flags)


def llama2(legacy, prepend=True):
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    pre = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer = bpe(pre, vocab_size=1500, specials=specials, unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                    trainer_args={"limit_alphabet": 300})

    def change(fields):
        fields["added_tokens"] = fields["added_tokens"][:3]
        fields["model"]["merges"] = [" ".join(m) for m in fields["model"]["merges"]]  # the old spelling
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        fields["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            *([strip] if prepend else [])]}
        if legacy:
            fields["pre_tokenizer"] = None
            fields["normalizer"] = {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
        else:
            fields["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "split": False,
                                       "prepend_scheme": "first" if prepend else "never"}

    tokenizer = edit(tokenizer, change)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def unigram(normalizer, pre_tokenizer, decoder, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    specials = ["<pad>", "</s>", "<unk>"] + (["<0x%02X>" % b for b in range(256)] if byte_fallback else [])
    trainer = trainers.UnigramTrainer(vocab_size=1200, special_tokens=specials, unk_token="<unk>", show_progress=False)
    # The trainer keeps every character it sees, so that it gets no random ones.
    words = training_texts()[-500:]
    tokenizer.train_from_iterator(words + [p for k in ("en", "zh", "ko", "ru", "eu", "digits") for p in PHRASES[k]] * 5, trainer)

    def change(fields):
        fields["model"]["byte_fallback"] = byte_fallback
        fields["added_tokens"] = fields["added_tokens"][:3]
        for entry in fields["model"]["vocab"]:
            entry[1] = round(entry[1], 4)

    return edit(tokenizer, change)


def word_piece(normalizer, pre_tokenizer, cleanup):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(vocab_size=1300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        limit_alphabet=500, show_progress=False)
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


ADDED_TEXTS = ["<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> ", "a <mask> b", "  <mask>  ", "x<left>y", "x  \n <left>  y", "x<right>  \t y",
               "<word>", "a<word>b", "a <word> b", "<word>é", "Café", "CAFÉ cafe\u0301", "<both>  <both>", " <both><mask> ",
               "<|im_start|><|im_start|>", "<|im_star", "foofoobar foo foobar", "<<mask>>", "K<word>1", "_<word>_", "<word>\u200d"]


def add_tokens_of_all_kinds(tokenizer):
    tokenizer.add_special_tokens([special("<|im_start|>"), special("<|im_end|>"), special("<mask>", lstrip=True),
                                  special("<left>", lstrip=True), special("<right>", rstrip=True), special("<both>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("<word>", single_word=True, normalized=False), AddedToken("café", normalized=True),
                          AddedToken("foo", normalized=False), AddedToken("foobar", normalized=True), AddedToken("foofoo", normalized=False)])
    return tokenizer


def kinds():
    yield "gpt2", edit(byte_level(), lambda f: f["model"].update(merges=[" ".join(m) for m in f["model"]["merges"]])), []
    roberta = byte_level(add_prefix_space=True, specials=["<s>", "</s>", "<pad>", "<unk>"])
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    yield "roberta", roberta, ["<s>a</s>", " <pad>"]
    llama3 = byte_level(LLAMA3, ignore_merges=True, specials=["<|begin_of_text|>", "<|eot_id|>"])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        "<|begin_of_text|> $A", "<|begin_of_text|> $A $B", [("<|begin_of_text|>", 0)])])
    # A token that no merge reaches: only ignore_merges gives it.
    llama3 = edit(llama3, lambda f: f["model"]["vocab"].update({"Ġwaterstone": len(f["model"]["vocab"])}))
    yield "llama3", llama3, ["<|begin_of_text|>x<|eot_id|>", " waterstone waterstones"]
    qwen2 = byte_level(QWEN2, normalizer=normalizers.NFC())
    yield "qwen2", add_tokens_of_all_kinds(qwen2), ADDED_TEXTS
    yield "deepseek_v3", byte_level(*DEEPSEEK_V3), ["a,b ,c", "12345a", "第1章x", "1a", "-a b-c"]
    yield "deepseek_llm", byte_level(*DEEPSEEK_LLM, pre_tokenizers.Digits(individual_digits=True)), ["a \n b  ", "Ω中a "]
    yield "o200k", byte_level(O200K), ["HelloWorld's THE'S a/b//\n", "camelCaseWords ABCdef"]
    lower = byte_level(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    yield "added_lowercase", add_tokens_of_all_kinds(lower), ADDED_TEXTS
    yield "llama2_legacy", llama2(legacy=True), ["<s>a</s> b", "Q\U0001f9ed\u2fa1", " a", "a<s> b"]
    yield "llama2_first", llama2(legacy=False), ["<s>a</s> b", "Q\U0001f9ed\u2fa1", " a", "a<s> b"]
    yield "llama2_never", llama2(legacy=False, prepend=False), ["<s>a</s> b", " a"]
    metaspace = bpe(pre_tokenizers.Metaspace(prepend_scheme="always", split=True), decoder=decoders.Metaspace(prepend_scheme="always"),
                    specials=["<unk>", "<s>"], unk_token="<unk>", trainer_args={"limit_alphabet": 150})
    yield "bpe_metaspace_unk", metaspace, ["<s> a", "a <s>b", "ᚠᚡ ᚠ"]
    t5 = unigram(normalizers.Sequence([normalizers.Precompiled(make_charsmap()), normalizers.Strip(left=False, right=True),
                                       normalizers.Replace(Regex(" {2,}"), "▁")]),
                 pre_tokenizers.Metaspace(prepend_scheme="always", split=True), decoders.Metaspace(prepend_scheme="always"))
    t5.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    yield "t5", t5, ["a</s>b", "<unk> ᚠᚡᚢ", "①½ﬁ™ e\u0301cole e\u0301\u0302", "Å ㍿"]
    nmt = unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Replace("  ", " ")]),
                  pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="never", split=False)]),
                  decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]), byte_fallback=True)
    yield "unigram_bytes", nmt, ["ᚠᚡᚢ", "\ufeffa\u200b b"]
    bert = word_piece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), True)
    bert.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    yield "bert", bert, ["[MASK] it is", "x" * 101, "do n't . ! ,", "$100+5=105^2 ~`|<>"]
    cased = word_piece(normalizers.BertNormalizer(lowercase=False, strip_accents=False, clean_text=False), pre_tokenizers.Whitespace(), False)
    cased.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    yield "bert_cased", cased, ["Ⓐb ⓒ", "a\u200db", "x_y‿z"]
    suffix = bpe(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous"),
                                          pre_tokenizers.Digits(individual_digits=False)]),
                 normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()]),
                 decoders.BPEDecoder(suffix="</w>"), specials=["<unk>"], unk_token="<unk>", end_of_word_suffix="</w>",
                 trainer_args={"limit_alphabet": 150, "end_of_word_suffix": "</w>"})
    yield "bpe_suffix", suffix, []
    prefix = bpe(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")]),
                 normalizers.Prepend("x"), decoders.WordPiece(prefix="##", cleanup=False), specials=["[UNK]"], unk_token="[UNK]",
                 fuse_unk=False, continuing_subword_prefix="##", trainer_args={"limit_alphabet": 120, "continuing_subword_prefix": "##"})
    yield "bpe_prefix", prefix, []
    split = pre_tokenizers.Split
    behaviors = bpe(pre_tokenizers.Sequence([
        split("-", "merged_with_previous"), split(Regex(r"\d+"), "merged_with_next"), split(Regex(r"[,.!]"), "contiguous"),
        split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), split(Regex("o*"), "isolated"),
        split(Regex("e"), "merged_with_previous", invert=True)]), specials=["<unk>"], unk_token="<unk>", vocab_size=900)
    yield "split_behaviors", behaviors, ["--a--b-", "1a22b333", "a,,b!.c", "foooo", "ee e"]
    level = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "the": 2, "river": 3, "": 4, "1": 5}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    level.decoder = decoders.Sequence([decoders.Strip("r", 1, 1), decoders.Fuse(), decoders.Replace("aa", "b"), decoders.Strip("b", 1, 1)])
    yield "word_level", level, ["the river a", "a  a", "river river"]


def decode(tokenizer, ids, skip_special_tokens):
    try:
        return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    except BaseException as error:  # the Strip and BPE decoders of the library panic on an empty text
        if type(error).__name__ != "PanicException":
            raise
        return None


def cases_of(tokenizer, texts, rng):
    encoded, decoded = [], []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        with_special = tokenizer.encode(text, add_special_tokens=True).ids
        back = decode(tokenizer, ids, False)
        if back is not None:
            encoded.append([text, ids, None if with_special == ids else with_special, None if back == text else back])
    for _ in range(RANDOM_DECODES_PER_KIND):
        size = tokenizer.get_vocab_size()
        ids = [rng.randrange(min(size, 300)) if rng.random() < 0.5 else rng.randrange(size + 2) for _ in range(rng.randint(1, 14))]
        texts_back = [decode(tokenizer, ids, False), decode(tokenizer, ids, True)]
        if None not in texts_back:
            decoded.append([ids, *texts_back])
    return {"encode": encoded, "decode": decoded}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "test/goldens/tokenizer")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for index, (name, tokenizer, extra) in enumerate(kinds()):
        rng = random.Random(SEED * 1000 + index)
        cases = cases_of(tokenizer, make_texts(rng, extra), rng)
        compact = dict(ensure_ascii=False, separators=(",", ":"))
        (arguments.output / f"{name}.tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), **compact))
        lines = ["[" + ",\n".join(json.dumps(c, **compact) for c in cases[key]) + "]" for key in ("encode", "decode")]
        (arguments.output / f"{name}.cases.json").write_text('{"encode":%s,\n"decode":%s}\n' % tuple(lines))
        print(name, tokenizer.get_vocab_size(), "tokens,", len(cases["encode"]), "texts")


if __name__ == "__main__":
    main()
