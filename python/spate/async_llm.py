"""AsyncLLM: the same model for asyncio; answers come as a stream."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator

from ._library import CHUNK, TIMEOUT, Engine, flags_of
from .llm import completion_body, logprobs_of
from .outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from .sampling_params import SamplingParams

_POLL_SECONDS = 0.1


class AsyncLLM:
    def __init__(self, model: str, **arguments: Any):
        arguments.setdefault("log_level", "warning")
        self._engine = Engine(flags_of(model, arguments))

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of any request of the API. Leaving the loop early ends the request."""
        request = await asyncio.to_thread(self._engine.start, path, body | {"stream": True})
        waiting = None
        try:
            while True:
                waiting = asyncio.ensure_future(asyncio.to_thread(request.next, _POLL_SECONDS))
                event, chunk = await asyncio.shield(waiting)
                if event == CHUNK:
                    yield chunk
                elif event != TIMEOUT:
                    return
        finally:
            if waiting is not None and not waiting.done():
                await asyncio.wait([waiting])
            request.close()

    async def generate(self, prompt: Any, sampling_params: SamplingParams | None = None,
                       request_id: str | None = None) -> AsyncIterator[RequestOutput]:
        """A RequestOutput whenever tokens come, with all of the answer so far; the last one is finished."""
        params = sampling_params or SamplingParams()
        body = await asyncio.to_thread(completion_body, self._engine, prompt, params)
        if request_id is not None:
            body["request_id"] = request_id
        outputs = [CompletionOutput(index=i, text="", token_ids=[]) for i in range(params.n)]
        async for chunk in self.stream("/v1/completions", body):
            for choice in chunk["choices"]:
                output = outputs[choice["index"]]
                output.text += choice["text"]
                output.token_ids += choice.get("token_ids") or []
                logprobs, _ = logprobs_of(self._engine, choice)
                if logprobs:
                    output.logprobs = (output.logprobs or []) + logprobs
                output.finish_reason = choice["finish_reason"]
                output.stop_reason = choice.get("stop_reason")
            finished = all(output.finish_reason is not None for output in outputs)
            yield RequestOutput(chunk["id"], prompt if isinstance(prompt, str) else None, None, outputs, finished)

    async def embed(self, prompt: Any, **fields: Any) -> EmbeddingRequestOutput:
        answer = await asyncio.to_thread(self._engine.call, "/v1/embeddings", {"input": prompt} | fields)
        return EmbeddingRequestOutput(answer["id"], EmbeddingOutput(answer["data"][0]["embedding"]))

    def close(self) -> None:
        self._engine.close()
