"""What a user of the official Python client does, checked. Arguments: base URL with /v1, API key."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model
messages = [{"role": "user", "content": "Hello! Please say hello."}]

answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=0)
text = answer.choices[0].message.content
assert answer.choices[0].finish_reason in ("stop", "length") and answer.usage.completion_tokens <= 16
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

streamed, usage, roles = "", None, 0
for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    if chunk.usage:
        usage = chunk.usage
    for choice in chunk.choices:
        streamed += choice.delta.content or ""
        roles += choice.delta.role is not None
assert streamed == (text or ""), (streamed, text)
assert usage.completion_tokens == answer.usage.completion_tokens and roles == 1

with client.beta.chat.completions.stream(model=model, messages=messages, max_tokens=16, temperature=0) \
        if not hasattr(client.chat.completions, "stream") \
        else client.chat.completions.stream(model=model, messages=messages, max_tokens=16, temperature=0) as stream:
    final = stream.get_final_completion()
assert (final.choices[0].message.content or "") == (text or ""), final

several = client.chat.completions.create(model=model, messages=messages, max_tokens=8, n=2, temperature=1, seed=7)
assert [choice.index for choice in several.choices] == [0, 1]

scored = client.chat.completions.create(model=model, messages=messages, max_tokens=4, logprobs=True, top_logprobs=3)
content = scored.choices[0].logprobs.content
assert len(content) == scored.usage.completion_tokens and len(content[0].top_logprobs) == 3
assert all(token.logprob <= 0 for token in content)

echoed = client.completions.create(model=model, prompt="The river is in", max_tokens=4, echo=True, logprobs=2)
assert echoed.choices[0].text.startswith("The river is in")
assert echoed.choices[0].logprobs.token_logprobs[0] is None
assert "".join(part.choices[0].text for part in client.completions.create(
    model=model, prompt="One two", max_tokens=4, temperature=0, stream=True) if part.choices) == \
    client.completions.create(model=model, prompt="One two", max_tokens=4, temperature=0).choices[0].text

for error, arguments in (
        (openai.NotFoundError, {"model": "no-such-model", "messages": messages}),
        (openai.BadRequestError, {"model": model, "messages": messages, "temperature": 9}),
        (openai.BadRequestError, {"model": model, "messages": messages, "max_tokens": 10**9}),
        (openai.BadRequestError, {"model": model, "messages": []})):
    try:
        client.chat.completions.create(**arguments)
    except error as caught:
        assert caught.body["message"] and "type" in caught.body, caught.body
    else:
        raise AssertionError(f"no {error.__name__} for {arguments}")

response = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=1)
assert response.request_id
print(f"python openai {openai.__version__}: {text!r}")
