"""What a user of LiteLLM does, checked. Arguments: base URL with /v1, API key."""

import importlib.metadata
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise the import asks the network
import litellm
import openai
import pydantic

place = {"api_base": sys.argv[1], "api_key": sys.argv[2], "max_retries": 0}
model = "hosted_vllm/" + openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2]).models.list().data[0].id
messages = [{"role": "user", "content": "Hello! Please say hello."}]
parameters = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]


class Person(pydantic.BaseModel, extra="forbid"):
    age: int = pydantic.Field(ge=0, le=150)
    is_tall: bool


# hosted_vllm/ is what LiteLLM's users of vLLM name; openai/ is its general client.
for name in (model, model.replace("hosted_vllm", "openai")):
    greedy = {"model": name, "messages": messages, "temperature": 0, **place}
    answer = litellm.completion(max_tokens=16, **greedy)
    text = answer.choices[0].message.content
    chunks = list(litellm.completion(max_tokens=16, stream=True, stream_options={"include_usage": True}, **greedy))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text, chunks
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens, chunks[-1]
    Person.model_validate_json(litellm.completion(max_tokens=300, response_format=Person, **greedy).choices[0].message.content)
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        called = litellm.completion(max_tokens=200, tools=tools, tool_choice=choice, parallel_tool_calls=False, **greedy)
        call = called.choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call
    embedded = litellm.embedding(model=name, input=["Hello", "there"], encoding_format="float", **place)
    assert [len(each["embedding"]) > 8 for each in embedded.data] == [True, True], embedded
    try:
        litellm.completion(**{**greedy, "temperature": 9})
        raise AssertionError("temperature 9 is taken")
    except litellm.BadRequestError as error:
        assert "temperature must be in [0, 2], got 9" in str(error), error

response = litellm.responses(model=name, input=messages[0]["content"], max_output_tokens=16, temperature=0, **place)
assert response.output[-1].content[0].text and response.usage.output_tokens <= 16, response
events = list(litellm.responses(model=name, input=messages[0]["content"], max_output_tokens=16, temperature=0, stream=True, **place))
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == response.output[-1].content[0].text
print(f"python litellm {importlib.metadata.version('litellm')}: {text!r}")
