"""What a user of instructor does, checked. Arguments: base URL with /v1, API key."""

import importlib.metadata
import sys
import typing

import instructor
import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
greedy = {"model": client.models.list().data[0].id, "messages": [{"role": "user", "content": "Hello! Who are you?"}], "temperature": 0,
          "max_tokens": 2000, "max_retries": 0}


class Person(pydantic.BaseModel, extra="forbid"):
    age: int = pydantic.Field(ge=0, le=150)
    is_tall: bool


class Pair(pydantic.BaseModel, extra="forbid"):
    people: typing.Annotated[list[Person], pydantic.Field(min_length=1, max_length=2)]


# Modes in which the answer is held to the schema; the others trust the model, and the bundled one is too small for that.
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    asked = instructor.from_openai(client, mode=mode)
    person = asked.chat.completions.create(response_model=Person, **greedy)
    assert isinstance(person, Person), (mode, person)
    *_, partial = asked.chat.completions.create_partial(response_model=Person, **greedy)
    assert 0 <= partial.age <= 150 and isinstance(partial.is_tall, bool), (mode, partial)
    pair = asked.chat.completions.create(response_model=Pair, **greedy)
    assert 1 <= len(pair.people) <= 2, (mode, pair)

try:
    asked.chat.completions.create(response_model=Person, **{**greedy, "temperature": 9})
    raise AssertionError("temperature 9 is taken")
except Exception as error:  # instructor wraps the client's error in one of its own
    assert "temperature must be in [0, 2], got 9" in str(error), error
print(f"python instructor {importlib.metadata.version('instructor')}: {person}")
