"""Tools, their choice, structured answers and Responses of the official Python client. Arguments: base URL with /v1, API key."""

import json
import sys
import time

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Hello! Please say hello."}]
parameters = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
              "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]

for choice, reason in (("required", "tool_calls"), ({"type": "function", "function": {"name": "get_weather"}}, "stop")):
    answer = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice=choice, max_tokens=200,
                                            parallel_tool_calls=False)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == reason, answer
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome") and call.function.name == "get_weather", call
with client.chat.completions.stream(model=model, messages=messages, tools=tools, tool_choice="required", max_tokens=200,
                                    parallel_tool_calls=False) as stream:
    streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
assert json.loads(streamed.function.arguments)["city"] in ("Paris", "Rome"), streamed


class Person(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=150)
    is_tall: bool


parsed = client.chat.completions.parse(model=model, messages=messages, response_format=Person, max_tokens=300,
                                       temperature=0)
assert isinstance(parsed.choices[0].message.parsed, Person), parsed

response = client.responses.create(model=model, input="Hello! Please say hello.", max_output_tokens=16, temperature=0)
assert response.status in ("completed", "incomplete") and response.usage.output_tokens <= 16, response
text = response.output_text
assert client.responses.retrieve(response.id).output_text == text
items = list(client.responses.input_items.list(response.id, limit=1))
assert [item.content[0].type for item in items] == ["input_text"], items
type(response).model_validate_json(client.responses.with_raw_response.retrieve(response.id).text)  # no field is missing
events = list(client.responses.create(model=model, input="Hello! Please say hello.", max_output_tokens=16, temperature=0,
                                      stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
with client.responses.stream(model=model, input="Hello! Please say hello.", max_output_tokens=16, temperature=0) as stream:
    assert stream.get_final_response().output_text == text
following = client.responses.create(model=model, input="And again.", previous_response_id=response.id, max_output_tokens=8)
assert following.usage.input_tokens > response.usage.input_tokens
called = client.responses.create(model=model, input="Hello!", max_output_tokens=200, tool_choice="required",
                                 parallel_tool_calls=False,
                                 tools=[{"type": "function", "name": "get_weather", "parameters": parameters}])
call = called.output[-1]
assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Paris", "Rome"), called
parsed = client.responses.parse(model=model, input="Hello!", text_format=Person, max_output_tokens=300, temperature=0)
assert isinstance(parsed.output_parsed, Person), parsed
background = client.responses.create(model=model, input="Hello!", background=True, max_output_tokens=8)
for _ in range(1000):
    background = client.responses.retrieve(background.id)
    if background.status != "in_progress":
        break
    time.sleep(0.01)
assert background.status in ("completed", "incomplete"), background

# A stream in the background goes on where its client left it, while it runs and later.
stream = client.responses.create(model=model, input="Hello! Please say hello.", background=True, stream=True, max_output_tokens=16,
                                 temperature=0)
first = [event for event, _ in zip(stream, range(3))]
stream.close()
rest = list(client.responses.retrieve(first[0].response.id, stream=True, starting_after=first[-1].sequence_number))
assert [event.sequence_number for event in first + rest] == list(range(len(first) + len(rest))), rest
assert "".join(event.delta for event in first + rest if event.type == "response.output_text.delta") == text
assert rest[-1].response.output_text == text
print(f"python openai {openai.__version__}, tools and responses: {text!r}")
