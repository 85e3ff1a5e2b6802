"""SamplingParams: how tokens are chosen and when an answer ends. Names and defaults are vLLM's."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class BeamSearchParams:
    """Of LLM.beam_search(). The temperature has no effect: nothing is drawn."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


@dataclasses.dataclass
class SamplingParams:
    n: int = 1
    temperature: float | None = None  # None here and below: the model's default
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    max_tokens: int | None = 16  # None: as many as the context leaves
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None  # chats only
    reasoning_max_tokens: int | None = None  # FastDeploy's name of it

    def body(self) -> dict[str, Any]:
        """The fields of a request that differ from the defaults."""
        fields = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                fields[field.name] = value
        if self.logit_bias:
            fields["logit_bias"] = {str(token_id): bias for token_id, bias in self.logit_bias.items()}
        return fields
