#!/usr/bin/env python3
"""Makes test/goldens/config/cases.jsonl: what transformers makes of many a config.json.

    python tools/goldens/make_config_goldens.py

Needs torch and transformers; goldens were made with torch 2.13 (CPU) and transformers 5.23. A line a case:

    name, config        the config.json
    refused             what our refusal must say; the case then has nothing else
    class               of the model that AutoModelForCausalLM chooses
    num_heads, num_kv_heads, head_dim, max_position_embeddings, rms_norm_eps, tie_word_embeddings, eos_token_ids
    windows             of each layer: tokens a query sees, 0: all
    inv_freq, attention_factor      of RoPE, for max_position_embeddings tokens

The script checks that transformers agrees with each refusal: it fails where BROKEN says so, and it runs where AMBIGUOUS does. The
configs of RELEASED are facts of published models, written down field by field as far as they matter here.
"""

import importlib
import json
import pathlib
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "config" / "cases.jsonl"

# A model of 3 layers; ABSENT as a value removes a key.
TINY = dict(vocab_size=160, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
ABSENT = object()


ARCHITECTURES = dict(llama="LlamaForCausalLM", mistral="MistralForCausalLM", qwen2="Qwen2ForCausalLM", qwen3="Qwen3ForCausalLM",
                     ernie4_5="Ernie4_5ForCausalLM")


def tiny(model_type, **more):
    config = TINY | dict(model_type=model_type, architectures=[ARCHITECTURES.get(model_type)]) | more
    return {key: value for key, value in config.items() if value is not ABSENT}


def llama(**more):
    return tiny("llama", **more)


def mistral(**more):
    return tiny("mistral", head_dim=12, **more)


def qwen2(**more):
    return tiny("qwen2", **more)


def qwen3(**more):
    return tiny("qwen3", **dict(head_dim=16) | more)


def ernie(**more):
    return tiny("ernie4_5", **dict(head_dim=16) | more)


LINEAR = dict(rope_type="linear", factor=4.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
PLAIN = dict(rope_type="default", rope_theta=5e5)
FULL, SLIDING = "full_attention", "sliding_attention"


def without(values, key):
    return {name: value for name, value in values.items() if name != key}


RUNS = {
    # Which of two RoPE objects, and whose theta.
    "rope_scaling beside rope_parameters": llama(rope_scaling=LINEAR, rope_parameters=PLAIN),
    "rope_scaling beside rope_parameters, and rope_theta": llama(rope_theta=1e6, rope_scaling=LINEAR, rope_parameters=PLAIN),
    "rope_scaling {} beside rope_parameters": llama(rope_scaling={}, rope_parameters=PLAIN),
    "rope_scaling null beside rope_parameters": llama(rope_scaling=None, rope_parameters=PLAIN),
    "rope_theta beside rope_parameters": llama(rope_theta=1e6, rope_parameters=PLAIN),
    "rope_theta null beside rope_parameters": llama(rope_theta=None, rope_parameters=PLAIN),
    "rope_scaling without a type": llama(rope_scaling=dict(factor=2.0)),
    "rope_type beside type": llama(rope_scaling=dict(LINEAR, type="yarn")),
    "linear": llama(rope_scaling=LINEAR),
    "dynamic": llama(rope_scaling=dict(rope_type="dynamic", factor=4.0)),
    "dynamic with an original length": llama(rope_scaling=dict(rope_type="dynamic", factor=4.0,
                                                               original_max_position_embeddings=8)),
    "yarn": llama(rope_scaling=YARN),
    "yarn, factor null": llama(rope_scaling=dict(YARN, factor=None)),
    "yarn without an original length": llama(rope_scaling=without(YARN, "original_max_position_embeddings")),
    "yarn, original length at the top": llama(original_max_position_embeddings=64, rope_scaling=YARN),
    "yarn, attention_factor 1": llama(rope_scaling=dict(YARN, attention_factor=1)),
    "yarn, mscale and mscale_all_dim": llama(rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=1.2)),
    "yarn, mscale alone": llama(rope_scaling=dict(YARN, mscale=0.7)),
    "yarn, truncate false": llama(rope_scaling=dict(YARN, truncate=False, beta_fast=4.0)),
    "yarn, truncate null": llama(rope_scaling=dict(YARN, truncate=None, beta_fast=4.0)),
    "llama3": llama(rope_scaling=LLAMA3),
    "llama3 without an original length": llama(rope_scaling=without(LLAMA3, "original_max_position_embeddings")),
    "llama3, original length at the top": llama(original_max_position_embeddings=64, rope_scaling=LLAMA3),
    # Windows.
    "mistral, sliding_window": mistral(sliding_window=8),
    "mistral, sliding_window null": mistral(sliding_window=None),
    "mistral without sliding_window": mistral(),
    "mistral, all layers full": mistral(sliding_window=8, layer_types=[FULL] * 3),
    "mistral, some layers slide": mistral(sliding_window=8, layer_types=[FULL, SLIDING, FULL]),
    "mistral, layer_types without sliding_window": mistral(layer_types=[SLIDING, FULL, SLIDING]),
    "mistral, layer_types null": mistral(sliding_window=8, layer_types=None),
    "qwen2, window without max_window_layers": qwen2(use_sliding_window=True, sliding_window=8),
    "qwen2, window of 30 layers without max_window_layers": qwen2(num_hidden_layers=30, use_sliding_window=True, sliding_window=8),
    "qwen2, window without sliding_window": qwen2(use_sliding_window=True, max_window_layers=1),
    "qwen2, sliding_window null": qwen2(use_sliding_window=True, max_window_layers=1, sliding_window=None),
    "qwen2, window not used": qwen2(sliding_window=8, max_window_layers=0),
    "qwen2, sliding_window 0 not used": qwen2(sliding_window=0, use_sliding_window=False),
    "qwen3, layer_types over max_window_layers": qwen3(use_sliding_window=True, sliding_window=8, max_window_layers=0,
                                                      layer_types=[FULL, SLIDING, FULL]),
    "qwen3, all layers full": qwen3(use_sliding_window=True, sliding_window=8, layer_types=[FULL] * 3),
    "llama, all layers full": llama(layer_types=[FULL] * 3),
    "llama, sliding_window null": llama(sliding_window=None),
    # What a silent config.json means.
    "mistral without num_key_value_heads": mistral(num_attention_heads=8, hidden_size=96, num_key_value_heads=ABSENT),
    "qwen2 without num_key_value_heads": qwen2(num_attention_heads=64, hidden_size=256, num_key_value_heads=ABSENT),
    "qwen3, num_key_value_heads null": qwen3(num_key_value_heads=None),
    "llama without num_key_value_heads": llama(num_key_value_heads=ABSENT),
    "ernie without num_key_value_heads": ernie(num_key_value_heads=ABSENT),
    "ernie, head_dim null": ernie(head_dim=None),
    "ernie without head_dim": ernie(head_dim=ABSENT),
    "qwen3 without head_dim": qwen3(head_dim=ABSENT),
    "llama without max_position_embeddings": llama(max_position_embeddings=ABSENT),
    "mistral without max_position_embeddings": mistral(max_position_embeddings=ABSENT),
    "qwen2 without max_position_embeddings": qwen2(max_position_embeddings=ABSENT),
    "ernie without max_position_embeddings": ernie(max_position_embeddings=ABSENT),
    "ernie without rms_norm_eps": ernie(),
    "llama without eos_token_id": llama(eos_token_id=ABSENT),
    "llama, eos_token_id null": llama(eos_token_id=None),
    "mistral without eos_token_id": mistral(eos_token_id=ABSENT),
    "qwen2 without eos_token_id": qwen2(eos_token_id=ABSENT),
    "qwen2 with a head_dim": qwen2(head_dim=16),
    "llama without intermediate_size": llama(intermediate_size=ABSENT),
    "no architectures": llama(architectures=ABSENT),
    "architectures null": llama(architectures=None),
    "architectures []": qwen3(architectures=[]),
    "a bare decoder": llama(architectures=["LlamaModel"], tie_word_embeddings=True),
    "swish": llama(hidden_act="swish"),
    "keys of other families": llama(use_sliding_window=True, max_window_layers=None, use_bias=True),
}

# transformers fails, at the latest in the first forward.
BROKEN = {
    "rope type null": (llama(rope_scaling=dict(type=None, factor=2.0)), "rope_scaling.type is null"),
    "rope_type null beside type": (llama(rope_scaling=dict(rope_type=None, type="linear", factor=2.0)), "rope_scaling.rope_type is null"),
    "rope type of nobody": (llama(rope_scaling=dict(type="magic")), "rope type \"magic\" is not one of"),
    "mrope": (qwen2(rope_scaling=dict(type="mrope", mrope_section=[1, 2, 3])), "rope type \"mrope\""),
    "rope_theta null": (llama(rope_theta=None), "rope_theta is null"),
    "rope_theta null in rope_parameters": (llama(rope_parameters=dict(PLAIN, rope_theta=None)), "rope_theta is null"),
    "linear without factor": (llama(rope_scaling=dict(type="linear")), "rope_scaling.factor is missing"),
    "linear, factor null": (llama(rope_scaling=dict(LINEAR, factor=None)), "rope_scaling.factor is null"),
    "dynamic without factor": (llama(rope_scaling=dict(type="dynamic")), "rope_scaling.factor is missing"),
    "yarn without factor": (llama(rope_scaling=without(YARN, "factor")), "rope_scaling.factor is missing"),
    "llama3 without factor": (llama(rope_scaling=without(LLAMA3, "factor")), "rope_scaling.factor is missing"),
    "llama3 without low_freq_factor": (llama(rope_scaling=without(LLAMA3, "low_freq_factor")), "rope_scaling.low_freq_factor is missing"),
    "llama3 without high_freq_factor": (llama(rope_parameters=without(LLAMA3, "high_freq_factor")), "rope_parameters.high_freq_factor is missing"),
    "RoPE by layer type": (qwen2(rope_parameters={FULL: PLAIN}), "rope_parameters differs between layer types"),
    "half of each head rotates, linear": (llama(partial_rotary_factor=0.5, rope_scaling=LINEAR), "partial_rotary_factor is 0.5"),
    "qwen2, layer_types slide, window not used": (qwen2(use_sliding_window=False, sliding_window=8, layer_types=[FULL, SLIDING, FULL]),
        "layer_types has sliding_attention, but use_sliding_window is false"),
    "qwen3, layer_types slide, no window": (qwen3(use_sliding_window=True, sliding_window=None, layer_types=[FULL, SLIDING, FULL]),
        "layer_types has sliding_attention, but sliding_window is null"),
    "mistral, layer_types slide, no window": (mistral(sliding_window=None, layer_types=[FULL, SLIDING, FULL]),
        "layer_types has sliding_attention, but sliding_window is null"),
    "llama, layer_types slide": (llama(layer_types=[SLIDING] * 3), "layer_types has sliding_attention, but LlamaForCausalLM has no window"),
    "mistral, sliding_window 0": (mistral(sliding_window=0), "sliding_window is 0"),
    "max_window_layers null": (qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=None), "max_window_layers is null"),
    "layer_types of another length": (qwen2(layer_types=[FULL]), "layer_types has 1 entries"),
    "mistral, num_key_value_heads null": (mistral(num_key_value_heads=None), "num_key_value_heads is null"),
    "qwen2 without num_key_value_heads, 4 heads": (qwen2(num_key_value_heads=ABSENT),
        "num_attention_heads 4 is not a multiple of num_key_value_heads 32, the default of a missing one"),
    "qwen3, head_dim null": (qwen3(head_dim=None), "head_dim is null"),
    "qwen2, head_dim null": (qwen2(head_dim=None), "head_dim is null"),
    "hidden_act null": (llama(hidden_act=None), "hidden_act is null"),
    "hidden_act SiLU": (llama(hidden_act="SiLU"), "hidden_act is \"SiLU\", needs silu"),
    "rms_norm_eps null": (llama(rms_norm_eps=None), "rms_norm_eps is null"),
    "rms_norm_eps in quotes": (llama(rms_norm_eps="1e-5"), "rms_norm_eps is \"1e-5\""),
    "tie_word_embeddings null": (llama(tie_word_embeddings=None), "tie_word_embeddings is null"),
    "attention_bias 1": (llama(attention_bias=1), "attention_bias is 1, needs true or false"),
    "vocab_size null": (llama(vocab_size=None), "vocab_size is null"),
    "hidden_size 48.0": (llama(hidden_size=48.0), "hidden_size is 48.0"),
    "no heads for the kv heads": (llama(num_key_value_heads=3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
}

# transformers runs these as something that the file does not say, or that other engines read otherwise.
AMBIGUOUS = {
    "half of each head rotates": (llama(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5, needs 1"),
    "half of each head rotates, qwen3": (qwen3(rope_parameters=dict(PLAIN, partial_rotary_factor=0.5)), "partial_rotary_factor is 0.5, needs 1"),
    "Llama's name, Qwen3's type": (qwen3(architectures=["LlamaForCausalLM"]),
        "model_type is \"qwen3\", but architectures is \"LlamaForCausalLM\", which is of model_type \"llama\""),
    "Llama's name, Granite's type": (tiny("granite", architectures=["LlamaForCausalLM"]), "model_type is \"granite\", but architectures is"),
    "Qwen3's name, Llama's type": (llama(architectures=["Qwen3ForCausalLM"]), "model_type is \"llama\", but architectures is"),
    "a classifier": (qwen3(architectures=["Qwen3ForSequenceClassification"]),
        "architectures is \"Qwen3ForSequenceClassification\", but model_type is \"qwen3\", which is of Qwen3ForCausalLM"),
    "llama, sliding_window": (llama(sliding_window=8), "sliding_window is 8, which LlamaForCausalLM does not have"),
    "ernie, layer_types slide": (ernie(sliding_window=8, layer_types=[SLIDING] * 3), "sliding_window is 8, which Ernie4_5ForCausalLM"),
    "longrope": (llama(rope_scaling=dict(rope_type="longrope", factor=4.0, short_factor=[1.0] * 6, long_factor=[2.0] * 6)),
        "rope type \"longrope\" is not one of"),
}


def released(architecture, model_type, vocab, hidden, intermediate, layers, heads, kv_heads, positions, eps=1e-5, **more):
    return dict(architectures=[architecture], model_type=model_type, vocab_size=vocab, hidden_size=hidden,
                intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                max_position_embeddings=positions, rms_norm_eps=eps, hidden_act="silu", initializer_range=0.02, use_cache=True,
                ) | dict(torch_dtype="bfloat16") | more


def released_llama(*sizes, **more):
    return released("LlamaForCausalLM", "llama", *sizes, **dict(attention_bias=False, pretraining_tp=1) | more)


def released_mistral(*sizes, **more):
    return released("MistralForCausalLM", "mistral", *sizes, **dict(attention_dropout=0.0) | more)


def released_qwen2(*sizes, **more):
    return released("Qwen2ForCausalLM", "qwen2", *sizes, **dict(eps=1e-6, use_sliding_window=False, attention_dropout=0.0) | more)


def released_qwen3(*sizes, **more):
    return released("Qwen3ForCausalLM", "qwen3", *sizes, **dict(eps=1e-6, attention_bias=False, head_dim=128, rope_scaling=None,
        rope_theta=1000000, sliding_window=None, use_sliding_window=False, bos_token_id=151643, eos_token_id=151645) | more)


LLAMA31 = dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=8192, rope_type="llama3")
RELEASED = {
    "Llama-2-7b": released_llama(32000, 4096, 11008, 32, 32, 32, 4096, rope_scaling=None, tie_word_embeddings=False),
    "Llama-3-8B": released_llama(128256, 4096, 14336, 32, 32, 8, 8192, rope_scaling=None, rope_theta=500000.0),
    "Llama-3.1-8B-Instruct": released_llama(128256, 4096, 14336, 32, 32, 8, 131072, mlp_bias=False, rope_scaling=LLAMA31,
        rope_theta=500000.0, eos_token_id=[128001, 128008, 128009]),
    "Llama-3.2-1B": released_llama(128256, 2048, 8192, 16, 32, 8, 131072, head_dim=64, mlp_bias=False, tie_word_embeddings=True,
        rope_scaling=dict(LLAMA31, factor=32.0), rope_theta=500000.0),
    "Llama-3.2-3B, saved by transformers 5": without(released_llama(128256, 3072, 8192, 28, 24, 8, 131072, head_dim=128,
        tie_word_embeddings=True, dtype="bfloat16", rope_parameters=dict(LLAMA31, factor=32.0, rope_theta=500000.0)), "torch_dtype"),
    "CodeLlama-7b": released_llama(32016, 4096, 11008, 32, 32, 32, 16384, rope_theta=1000000, rope_scaling=None),
    "Yarn-Llama-2-7b-128k": released_llama(32000, 4096, 11008, 32, 32, 32, 131072, rope_scaling=dict(factor=32.0,
        original_max_position_embeddings=4096, type="yarn", finetuned=True)),
    "vicuna-7b-v1.5-16k": released_llama(32000, 4096, 11008, 32, 32, 32, 4096, rope_scaling=dict(factor=4.0, type="linear")),
    "TinyLlama-1.1B": released_llama(32000, 2048, 5632, 22, 32, 4, 2048, rope_scaling=None, rope_theta=10000.0),
    "SmolLM2-135M": released_llama(49152, 576, 1536, 30, 9, 3, 8192, is_llama_config=True, rope_interleaved=False, rope_scaling=None,
        rope_theta=100000, tie_word_embeddings=True),
    "SmolLM2-1.7B": released_llama(49152, 2048, 8192, 24, 32, 32, 8192, rope_theta=130000, rope_scaling=None, tie_word_embeddings=True),
    "Yi-6B": released_llama(64000, 4096, 11008, 32, 32, 4, 4096, rope_theta=5000000.0, rope_scaling=None),
    "Yi-34B-200K": released_llama(64000, 7168, 20480, 60, 56, 8, 200000, rope_theta=10000000.0, pad_token_id=0),
    "deepseek-llm-7b": released_llama(102400, 4096, 11008, 30, 32, 32, 4096, eps=1e-6, rope_scaling=None, rope_theta=10000.0),
    "deepseek-coder-6.7b": released_llama(32256, 4096, 11008, 32, 32, 32, 16384, eps=1e-6, rope_theta=100000,
        rope_scaling=dict(factor=4.0, type="linear")),
    "DeepSeek-R1-Distill-Llama-8B": released_llama(128256, 4096, 14336, 32, 32, 8, 131072, mlp_bias=False, rope_scaling=LLAMA31,
        rope_theta=500000.0),
    "Falcon3-7B": released_llama(131072, 3072, 23040, 28, 12, 4, 32768, eps=1e-6, head_dim=256, mlp_bias=False, rope_theta=1000042,
        rope_scaling=None),
    "Mistral-7B-v0.1": released_mistral(32000, 4096, 14336, 32, 32, 8, 32768, rope_theta=10000.0, sliding_window=4096),
    "Mistral-7B-Instruct-v0.2": released_mistral(32000, 4096, 14336, 32, 32, 8, 32768, rope_theta=1000000.0, sliding_window=None),
    "Mistral-7B-v0.3": released_mistral(32768, 4096, 14336, 32, 32, 8, 32768, rope_theta=1000000.0, sliding_window=None),
    "Mistral-Nemo-2407": released_mistral(131072, 5120, 14336, 40, 32, 8, 131072, head_dim=128, rope_theta=1000000.0, sliding_window=None),
    "Mistral-Small-24B-2501": released_mistral(131072, 5120, 32768, 40, 32, 8, 32768, head_dim=128, rope_theta=100000000.0,
        sliding_window=None),
    "Ministral-8B-2410": released_mistral(131072, 4096, 12288, 36, 32, 8, 32768, head_dim=128, rope_theta=100000000.0, sliding_window=32768),
    "Yarn-Mistral-7b-128k": released_mistral(32000, 4096, 14336, 32, 32, 8, 32768, rope_theta=10000.0, sliding_window=131072,
        max_sequence_length=131072, rope_scaling=dict(factor=16.0, finetuned=True, original_max_position_embeddings=8192, type="yarn")),
    "Qwen1.5-7B": released_qwen2(151936, 4096, 11008, 32, 32, 32, 32768, max_window_layers=28, sliding_window=32768, rope_theta=1000000.0),
    "Qwen2-0.5B": released_qwen2(151936, 896, 4864, 24, 14, 2, 131072, max_window_layers=24, sliding_window=131072, rope_theta=1000000.0,
        tie_word_embeddings=True),
    "Qwen2.5-7B-Instruct": released_qwen2(152064, 3584, 18944, 28, 28, 4, 32768, max_window_layers=28, sliding_window=131072,
        rope_theta=1000000.0),
    "Qwen2.5-7B-Instruct with YaRN": released_qwen2(152064, 3584, 18944, 28, 28, 4, 32768, max_window_layers=28, sliding_window=131072,
        rope_theta=1000000.0, rope_scaling=dict(factor=4.0, original_max_position_embeddings=32768, type="yarn")),
    "Qwen2.5-7B-Instruct-1M": released_qwen2(152064, 3584, 18944, 28, 28, 4, 1010000, max_window_layers=28, sliding_window=32768,
        rope_theta=10000000.0, dual_chunk_attention_config=dict(chunk_size=262144, local_size=8192)),
    "DeepSeek-R1-Distill-Qwen-1.5B": released_qwen2(151936, 1536, 8960, 28, 12, 2, 131072, max_window_layers=21, sliding_window=4096,
        rope_theta=10000, use_mrope=False),
    "QwQ-32B": released_qwen2(152064, 5120, 27648, 64, 40, 8, 40960, eps=1e-5, max_window_layers=64, sliding_window=32768,
        rope_theta=1000000.0),
    "Qwen3-0.6B": released_qwen3(151936, 1024, 3072, 28, 16, 8, 40960, max_window_layers=28, tie_word_embeddings=True),
    "Qwen3-8B, saved by transformers 4.56": released_qwen3(151936, 4096, 12288, 36, 32, 8, 40960, max_window_layers=36,
        layer_types=[FULL] * 36, dtype="bfloat16"),
    "Qwen3-4B-Instruct-2507": released_qwen3(151936, 2560, 9728, 36, 32, 8, 262144, rope_theta=5000000, max_window_layers=36,
        tie_word_embeddings=True),
    "Qwen3-32B with YaRN": released_qwen3(151936, 5120, 25600, 64, 64, 8, 40960, max_window_layers=64,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "ERNIE-4.5-0.3B-PT": released("Ernie4_5ForCausalLM", "ernie4_5", 103424, 1024, 3072, 18, 16, 2, 131072, head_dim=128, use_bias=False,
        rope_theta=500000.0, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "ERNIE-4.5-0.3B, as Baidu spells it": released("Ernie4_5_ForCausalLM", "ernie4_5", 103424, 1024, 3072, 18, 16, 2, 131072,
        head_dim=128, use_bias=False, rope_theta=500000, rope_scaling=None, tie_word_embeddings=True),
}


def load_config(config):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        return AutoConfig.from_pretrained(folder)


def run(loaded):
    """A forward pass in two parts; every failure of transformers comes out of it."""
    model = AutoModelForCausalLM.from_config(loaded).eval()
    token_ids = torch.arange(3, 27)[None]
    with torch.no_grad():
        first = model(token_ids[:, :12], use_cache=True)
        model(token_ids[:, 12:], past_key_values=first.past_key_values, use_cache=True)


def layer_windows(loaded, class_name):
    if class_name.startswith(("Llama", "Ernie")):
        return [0] * loaded.num_hidden_layers
    if class_name.startswith("Mistral"):
        return [loaded.sliding_window or 0] * loaded.num_hidden_layers
    return [loaded.sliding_window if layer_type == SLIDING else 0 for layer_type in loaded.layer_types]


def facts(loaded):
    model_class = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[type(loaded)]
    name = model_class.__name__
    rotary_class = getattr(importlib.import_module(model_class.__module__), name.replace("ForCausalLM", "RotaryEmbedding"))
    rotary = rotary_class(loaded)
    head_dim = getattr(loaded, "head_dim", None) or loaded.hidden_size // loaded.num_attention_heads
    ends = loaded.eos_token_id if isinstance(loaded.eos_token_id, list) else [loaded.eos_token_id]
    ends = [token_id for token_id in ends if token_id is not None]
    return {"class": name, "num_heads": loaded.num_attention_heads, "num_kv_heads": loaded.num_key_value_heads, "head_dim": head_dim,
            "max_position_embeddings": loaded.max_position_embeddings, "rms_norm_eps": loaded.rms_norm_eps,
            "tie_word_embeddings": loaded.tie_word_embeddings, "eos_token_ids": ends, "windows": layer_windows(loaded, name),
            "inv_freq": [float(f"{value:.9g}") for value in rotary.inv_freq.tolist()], "attention_factor": float(rotary.attention_scaling)}


def main():
    transformers.logging.set_verbosity_error()
    lines = []
    for name, config in RUNS.items():
        run(load_config(config))
        lines.append(dict(name=name, config=config) | facts(load_config(config)))
    for name, config in RELEASED.items():
        lines.append(dict(name=name, config=config) | facts(load_config(config)))
    for name, (config, refused) in AMBIGUOUS.items():
        run(load_config(config))
        lines.append(dict(name=name, config=config, refused=refused))
    for name, (config, refused) in BROKEN.items():
        try:
            run(load_config(config))
        except Exception:  # whatever it is: transformers has an error class for each place
            lines.append(dict(name=name, config=config, refused=refused))
        else:
            raise SystemExit(f"transformers runs \"{name}\"")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} cases, {OUT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
