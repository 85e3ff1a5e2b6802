"""Trains the byte-level BPE tokenizer on generated text and writes tokenizer.json and tokenizer_config.json.

The layout (normaliser, split, added tokens) is that of Qwen2 and Qwen3; digits stay single tokens. Seeded, one minute.
"""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import generate
import skills
import stories

VOCAB_SIZE = 8192
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]                        # special: left out of decoded text
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]  # part of the text


def corpus(seed, num_docs):
    """Training documents without their control tokens, and the common characters, so that most Chinese text is one token a character."""
    rng = random.Random(f"{seed} tokenizer")
    for _ in range(num_docs):
        _, parts = generate.training_document(rng)
        text = "".join(part for part, _ in parts)
        for token in CONTROL + MARKERS:
            text = text.replace(token, "\n")
        yield text
        yield stories.document(rng)
    for _ in range(20):
        yield " ".join(rng.sample(skills.COMMON_CHARACTERS, len(skills.COMMON_CHARACTERS)))


def build(seed, num_docs):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    # At most 12 bytes a token (four Chinese characters): template sentences must not become single tokens.
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(CONTROL + MARKERS), min_frequency=2, max_token_length=12,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus(seed, num_docs), trainer)
    tokenizer.add_tokens([AddedToken(token, special=token in CONTROL, normalized=False) for token in CONTROL + MARKERS])
    return tokenizer


def config(tokenizer):
    added = {str(tokenizer.token_to_id(token)): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                                                 "special": token in CONTROL} for token in CONTROL + MARKERS}
    return {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 4096, "pad_token": "<|endoftext|>", "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}


if __name__ == "__main__":
    tokenizer = build(seed=1, num_docs=20_000)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"make_tokenizer: {VOCAB_SIZE} tokens wanted, got {tokenizer.get_vocab_size()}; use more documents")
    generate.MODEL_DIR.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(generate.MODEL_DIR / "tokenizer.json"))
    (generate.MODEL_DIR / "tokenizer_config.json").write_text(json.dumps(config(tokenizer), indent=2) + "\n")
    print(f"{tokenizer.get_vocab_size()} tokens")
