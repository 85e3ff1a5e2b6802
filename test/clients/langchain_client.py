"""What a user of LangChain does, checked. Arguments: base URL with /v1, API key."""

import asyncio
import importlib.metadata
import sys

import openai
import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

place = {"base_url": sys.argv[1], "api_key": sys.argv[2]}
model = openai.OpenAI(**place).models.list().data[0].id
chat = ChatOpenAI(model=model, temperature=0, max_tokens=300, max_retries=0, stream_usage=True, **place)
short = chat.bind(max_tokens=16)
question = "Hello! Please say hello."


# Closed, as the bundled model would go on with properties of its own until max_tokens.
class Person(pydantic.BaseModel, extra="forbid"):
    """A person."""

    age: int = pydantic.Field(ge=0, le=150)
    is_tall: bool


class Day(pydantic.BaseModel, extra="forbid"):
    is_today: bool


@tool(args_schema=Day)
def get_weather(is_today: bool) -> str:
    """The weather of a day."""
    return "dry" if is_today else "wet"


answer = short.invoke(question)
assert answer.content and answer.usage_metadata["output_tokens"] <= 16, answer
chunks = list(short.stream(question))
assert "".join(chunk.content for chunk in chunks) == answer.content, chunks
assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == answer.usage_metadata["output_tokens"]
assert [each.content for each in short.batch([question, question])] == [answer.content] * 2


async def asynchronous():
    assert (await short.ainvoke(question)).content == answer.content
    assert "".join([chunk.content async for chunk in short.astream(question)]) == answer.content


asyncio.run(asynchronous())

for choice in ("any", "required", "get_weather"):
    bound = chat.bind_tools([get_weather], tool_choice=choice, strict=True, parallel_tool_calls=False)
    call = bound.invoke(question).tool_calls[0]
    assert call["name"] == "get_weather" and isinstance(call["args"]["is_today"], bool), call
    streamed = None
    for chunk in bound.stream(question):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == call["args"], (choice, streamed)
assert not chat.bind_tools([get_weather], tool_choice="none").invoke(question).tool_calls
automatic = chat.bind_tools([get_weather], tool_choice="auto").invoke(question)
assert automatic.content or automatic.tool_calls, automatic
asked = bound.invoke(question)
result = get_weather.invoke({**asked.tool_calls[0], "type": "tool_call"})
assert short.invoke([("user", question), asked, result]).response_metadata["finish_reason"] in ("stop", "length")

for method in ("json_schema", "function_calling"):
    for strict in (None, True):
        person = chat.with_structured_output(Person, method=method, strict=strict).invoke(question)
        assert isinstance(person, Person), (method, strict, person)
whole = chat.with_structured_output(Person, method="json_mode", include_raw=True).invoke(question + " Answer in JSON.")
assert whole["raw"].content.lstrip().startswith("{"), whole  # json_mode has no schema: that it is an object is all that is promised

embeddings = OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **place)
one = embeddings.embed_query("Hello")
assert all(abs(a - b) < 1e-5 for a, b in zip(one, embeddings.embed_documents(["Hello", "there"])[0], strict=True))

try:
    ChatOpenAI(model=model, temperature=9, max_retries=0, **place).invoke(question)
    raise AssertionError("temperature 9 is taken")
except openai.BadRequestError as error:
    assert "temperature must be in [0, 2], got 9" in str(error), error
print(f"python langchain-openai {importlib.metadata.version('langchain-openai')}: {answer.content!r}")
