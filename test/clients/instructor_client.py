"""What a user of instructor does, checked. Arguments: base URL with /v1, API key."""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
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


TASKS = '{"tasks": [{"age": 7, "is_tall": true}, {"age": 150, "is_tall": false}]}'


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

# Several of a kind: instructor asks for a list and makes each as soon as the stream has it. Its schema lets a model leave the list
# out, which the bundled one does; so a scripted one answers. SPATE_PROGRAM is the program that serves it.
def check_several(program):
    script = pathlib.Path(tempfile.mkdtemp()) / "script.json"
    script.write_text(json.dumps({"answers": [
        {"when": "<tools>", "text": '<tool_call>\n{"name": "IterablePerson", "arguments": ' + TASKS + '}\n</tool_call>'},
        {"text": TASKS}]}))
    server = subprocess.Popen([program, "serve", pathlib.Path(__file__).parents[2] / "models/mini-qwen3", "--device", "mock",
                               "--mock-script", script, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = next(found[1] for line in server.stdout if (found := re.search("listening on (http:[^ ]*)", line)))
        scripted = openai.OpenAI(base_url=url.strip() + "/v1", api_key="none", max_retries=5)
        threading.Thread(target=lambda: all(server.stdout), daemon=True).start()
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
            asked = instructor.from_openai(scripted, mode=mode)
            streamed = list(asked.chat.completions.create_iterable(response_model=Person, **greedy))
            whole = list(asked.chat.completions.create(response_model=list[Person], **greedy))
            for people in (streamed, whole):
                assert [(each.age, each.is_tall) for each in people] == [(7, True), (150, False)], (mode, people)
    finally:
        server.terminate()
        server.wait()


if os.environ.get("SPATE_PROGRAM"):
    check_several(os.environ["SPATE_PROGRAM"])

try:
    asked.chat.completions.create(response_model=Person, **{**greedy, "temperature": 9})
    raise AssertionError("temperature 9 is taken")
except Exception as error:  # instructor wraps the client's error in one of its own
    assert "temperature must be in [0, 2], got 9" in str(error), error
print(f"python instructor {importlib.metadata.version('instructor')}: {person}")
