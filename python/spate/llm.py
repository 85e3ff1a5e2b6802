"""LLM: a model in this process, for batches."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Sequence

from ._library import DONE, TIMEOUT, Engine, Request, flags_of
from .outputs import (BeamSearchOutput, BeamSearchSequence, CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      Logprob, RequestOutput)
from .sampling_params import BeamSearchParams, SamplingParams

Prompt = "str | list[int] | dict[str, Any]"
_POLL_SECONDS = 0.1


def prompt_of(prompt: Any) -> str | list[int]:
    """A text, token ids, or vLLM's {"prompt": ...} and {"prompt_token_ids": ...}."""
    if isinstance(prompt, dict):
        return prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
    return prompt


def room_behind(engine: Engine, prompt: str | list[int], params: SamplingParams) -> int:
    """The tokens that the context leaves to an answer; 1 where it leaves none, so that the engine's error says so."""
    told = engine.call("/tokenize", {"prompt": prompt if isinstance(prompt, str) else "a"})
    num_prompt_tokens = told["count"] if isinstance(prompt, str) else len(prompt)
    if params.truncate_prompt_tokens is not None and params.truncate_prompt_tokens >= 0:
        num_prompt_tokens = min(num_prompt_tokens, params.truncate_prompt_tokens)
    return max(1, told["max_model_len"] - num_prompt_tokens)


def completion_body(engine: Engine, prompt: Any, params: SamplingParams) -> dict[str, Any]:
    body = params.body() | {"prompt": prompt_of(prompt), "return_token_ids": True}
    # Absent is 16 for the API; None is what the context leaves, which only a chat says by absence.
    body["max_tokens"] = room_behind(engine, body["prompt"], params) if params.max_tokens is None else params.max_tokens
    if params.logprobs is not None:
        body["return_tokens_as_token_ids"] = True  # their texts are not unique
    return body


def id_of(label: str) -> int:
    return int(label.removeprefix("token_id:"))


def logprobs_of(engine: Engine, choice: dict[str, Any]) -> tuple[list[dict[int, Logprob]] | None, float | None]:
    """Of each token and its alternatives, by token id; the sampled one first."""
    given = choice.get("logprobs")
    if not given:
        return None, None
    if "content" in given:  # of chats
        tokens = [{id_of(part["token"]): Logprob(part["logprob"], decoded_token=bytes(part["bytes"]).decode(errors="replace"))
                   for part in [token, *token["top_logprobs"]]} for token in given["content"]]
        return tokens, sum(token["logprob"] for token in given["content"])
    tops = given.get("top_logprobs") or [{} for _ in given["tokens"]]
    tokens = []
    for label, value, top in zip(given["tokens"], given["token_logprobs"], tops):
        values = {id_of(label): value} | {id_of(other): p for other, p in (top or {}).items() if other != label}
        tokens.append({token_id: Logprob(p, decoded_token=engine.token_text(token_id)) for token_id, p in values.items()})
    return tokens, sum(value for value in given["token_logprobs"] if value is not None)


def completion_of(engine: Engine, choice: dict[str, Any]) -> CompletionOutput:
    message = choice.get("message")
    logprobs, cumulative = logprobs_of(engine, choice)
    return CompletionOutput(
        index=choice["index"],
        text=(message["content"] or "") if message is not None else choice["text"],
        token_ids=choice.get("token_ids") or [],
        logprobs=logprobs,
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        cumulative_logprob=cumulative,
        reasoning_content=message.get("reasoning_content") if message is not None else None)


def request_output_of(engine: Engine, answer: dict[str, Any], prompt: str | None) -> RequestOutput:
    choices = answer["choices"]
    details = answer["usage"].get("prompt_tokens_details") or {}
    return RequestOutput(
        request_id=answer["id"],
        prompt=prompt,
        prompt_token_ids=choices[0].get("prompt_token_ids") or answer.get("prompt_token_ids"),
        outputs=[completion_of(engine, choice) for choice in choices],
        prompt_logprobs=choices[0].get("prompt_logprobs") or answer.get("prompt_logprobs"),
        num_cached_tokens=details.get("cached_tokens"))


def beam_of(choice: dict[str, Any]) -> BeamSearchSequence:
    given = choice["logprobs"]
    return BeamSearchSequence(
        tokens=choice["prompt_token_ids"] + choice["token_ids"],
        logprobs=[{token_id: Logprob(value)} for token_id, value in zip(choice["token_ids"], given["token_logprobs"])],
        cum_logprob=sum(given["token_logprobs"]),
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"))


class LLM:
    """`LLM("models/mini-qwen3", device="cpu")`: keyword arguments are the flags of `spate serve`."""

    def __init__(self, model: str, **arguments: Any):
        arguments.setdefault("log_level", "warning")
        arguments.setdefault("max_prefill_stall_ms", 0)  # nobody reads along
        self._engine = Engine(flags_of(model, arguments))

    def generate(self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_tqdm: bool = True) -> list[RequestOutput]:
        """One RequestOutput a prompt, in order. A list of numbers is one prompt of token ids."""
        if isinstance(prompts, (str, dict)) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        bodies = [completion_body(self._engine, prompt, params)
                  for prompt, params in zip(prompts, self._params(sampling_params, prompts))]
        answers = self._run("/v1/completions", bodies, use_tqdm)
        texts = [prompt_of(prompt) for prompt in prompts]
        return [request_output_of(self._engine, answer, text if isinstance(text, str) else None)
                for answer, text in zip(answers, texts)]

    def chat(self, messages: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool = True, **fields: Any) -> list[RequestOutput]:
        """A conversation or a list of them. Further fields are the API's: tools, chat_template_kwargs ..."""
        if not messages:
            raise ValueError("messages is empty: at least one message, or one conversation, is needed")
        conversations = [messages] if isinstance(messages[0], dict) else messages
        bodies = []
        for conversation, params in zip(conversations, self._params(sampling_params, conversations)):
            body = params.body() | {"messages": conversation, "return_token_ids": True} | fields
            if params.max_tokens is not None:
                body["max_tokens"] = params.max_tokens
            if params.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": params.logprobs, "return_tokens_as_token_ids": True}
            bodies.append(body)
        return [request_output_of(self._engine, answer, None) for answer in self._run("/v1/chat/completions", bodies, use_tqdm)]

    def beam_search(self, prompts: Any, params: BeamSearchParams, use_tqdm: bool = False) -> list[BeamSearchOutput]:
        """The beam_width most probable answers to each prompt, best first."""
        if isinstance(prompts, (str, dict)) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        body = {"use_beam_search": True, "n": params.beam_width, "max_tokens": params.max_tokens,
                "length_penalty": params.length_penalty, "ignore_eos": params.ignore_eos,
                "include_stop_str_in_output": params.include_stop_str_in_output, "logprobs": 0, "return_token_ids": True}
        answers = self._run("/v1/completions", [body | {"prompt": prompt_of(prompt)} for prompt in prompts], use_tqdm)
        outputs = [BeamSearchOutput([beam_of(choice) for choice in answer["choices"]]) for answer in answers]
        for output in outputs:
            for sequence in output.sequences:
                sequence.text = self.decode(sequence.tokens)
        return outputs

    def embed(self, prompts: Any, use_tqdm: bool = True, **fields: Any) -> list[EmbeddingRequestOutput]:
        """One vector a prompt. Fields: dimensions, normalize, truncate_prompt_tokens."""
        if isinstance(prompts, (str, dict)) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        bodies = [{"input": prompt_of(prompt)} | fields for prompt in prompts]
        return [EmbeddingRequestOutput(answer["id"], EmbeddingOutput(answer["data"][0]["embedding"]))
                for answer in self._run("/v1/embeddings", bodies, use_tqdm)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._engine.call("/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"]

    def decode(self, token_ids: list[int]) -> str:
        return self._engine.call("/detokenize", {"tokens": token_ids})["prompt"]

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @staticmethod
    def _params(given: Any, prompts: Sequence[Any]) -> Iterable[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return itertools.repeat(given or SamplingParams(), len(prompts))
        if len(given) != len(prompts):
            raise ValueError(f"{len(given)} sampling_params for {len(prompts)} prompts")
        return given

    def _run(self, path: str, bodies: list[dict[str, Any]], use_tqdm: bool) -> list[dict[str, Any]]:
        """All at once, as many as the engine's queue takes. Ctrl-C ends what runs."""
        if any(body.get("stream") for body in bodies):
            raise ValueError("stream must be false: answers come whole here, AsyncLLM streams them")
        bar = _progress_bar(len(bodies)) if use_tqdm and len(bodies) > 1 else None
        answers: list[Any] = []
        running: list[Request] = []
        try:
            for body in bodies:
                if len(running) == _MAX_IN_FLIGHT:
                    answers.append(_wait(running.pop(0), bar))
                running.append(self._engine.start(path, body))
            while running:
                answers.append(_wait(running.pop(0), bar))
        finally:
            for request in running:
                request.close()
            if bar is not None:
                bar.close()
        return answers


_MAX_IN_FLIGHT = 256


def _wait(request: Request, bar: Any) -> Any:
    try:
        while True:
            event, answer = request.next(_POLL_SECONDS)
            if event == TIMEOUT:
                continue
            assert event == DONE
            if bar is not None:
                bar.update(1)
            return answer
    finally:
        request.close()


def _progress_bar(total: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc="Processed prompts")
