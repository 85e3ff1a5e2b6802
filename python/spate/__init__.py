"""Spate in a Python process: `LLM` for batches, `AsyncLLM` for streams.

    from spate import LLM, SamplingParams
    llm = LLM("models/mini-qwen3")
    print(llm.generate("The river", SamplingParams(max_tokens=16))[0].outputs[0].text)
"""

from ._library import SpateError
from .async_llm import AsyncLLM
from .llm import LLM
from .outputs import (BeamSearchOutput, BeamSearchSequence, CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      Logprob, RequestOutput)
from .sampling_params import BeamSearchParams, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "CompletionOutput",
           "EmbeddingOutput", "EmbeddingRequestOutput", "Logprob", "RequestOutput", "SamplingParams", "SpateError"]
