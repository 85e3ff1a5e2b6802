"""What a user of the official Anthropic client does, checked. Arguments: base URL without /v1, API key."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
model = "mini-qwen3"
model = client.models.list().data[0].id if hasattr(client, "models") else model
messages = [{"role": "user", "content": "Hello! Please say hello."}]
tools = [{"name": "get_weather", "description": "The weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                           "required": ["city"], "additionalProperties": False}}]

answer = client.messages.create(model=model, max_tokens=16, extra_body={"temperature": 0}, system="Be brief.",
                                messages=messages)
text = "".join(block.text for block in answer.content if block.type == "text")
assert answer.stop_reason in ("end_turn", "max_tokens") and answer.usage.output_tokens <= 16, answer

with client.messages.stream(model=model, max_tokens=16, extra_body={"temperature": 0}, system="Be brief.",
                            messages=messages) as stream:
    final = stream.get_final_message()
assert "".join(block.text for block in final.content if block.type == "text") == text, final
assert final.usage.output_tokens == answer.usage.output_tokens and final.stop_reason == answer.stop_reason

counted = client.messages.count_tokens(model=model, system="Be brief.", messages=messages)
assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0), (counted, answer)

for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
    called = client.messages.create(model=model, max_tokens=100, messages=messages, tools=tools, tool_choice=choice)
    call = called.content[-1]
    assert call.type == "tool_use" and call.input["city"] in ("Paris", "Rome") and called.stop_reason == "tool_use", called
with client.messages.stream(model=model, max_tokens=100, messages=messages, tools=tools,
                            tool_choice={"type": "any"}) as stream:
    streamed = stream.get_final_message()
assert streamed.content[-1].input["city"] in ("Paris", "Rome"), streamed
followed = client.messages.create(model=model, max_tokens=8, tools=tools, messages=messages + [
    {"role": "assistant", "content": [call.model_dump()]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]}])
assert followed.role == "assistant"

for error, arguments in ((anthropic.NotFoundError, {"model": "no-such-model"}),
                         (anthropic.BadRequestError, {"extra_body": {"temperature": 9}}),
                         (anthropic.BadRequestError, {"messages": []})):
    try:
        client.messages.create(**{"model": model, "max_tokens": 5, "messages": messages, **arguments})
    except error as caught:
        assert caught.body["error"]["message"], caught.body
    else:
        raise AssertionError(f"no {error.__name__} for {arguments}")
print(f"python anthropic {anthropic.__version__}: {text!r}")
