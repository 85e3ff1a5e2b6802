"""Answers to random JSON schemas, checked by the package jsonschema. Arguments: base URL with /v1, API key, how many schemas."""

import concurrent.futures
import json
import random
import sys
import urllib.error
import urllib.request

import jsonschema

base_url, api_key, count = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 200
KEYS = ["name", "size", "tags", "kind", "next"]


def random_schema(rng, depth):
    choice = rng.randrange(6 if depth == 0 else 12)
    if choice == 0:
        return {"enum": rng.sample(["a", "b\n", 1, 2.5, None, True, [], {"x": [1]}], 3)}
    if choice == 1:
        low = rng.randrange(-50, 50)
        return {"type": rng.choice(["integer", "number"]), "minimum": low, "exclusiveMaximum": low + rng.randrange(1, 200)}
    if choice == 2:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 12)}
    if choice == 3:
        return {"type": "string", "pattern": rng.choice(["^[a-z]+$", "^\\d{2,4}-[A-F]?$", "^(on|off)$", "x.y"]), "maxLength": 9}
    if choice == 4:
        return {"type": ["boolean", "null"]}
    if choice == 5:
        return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "date-time", "time"])}
    if choice == 6:
        return {"anyOf": [random_schema(rng, depth - 1), random_schema(rng, depth - 1)]}
    if choice == 7:
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": rng.randrange(2), "maxItems": rng.randrange(2, 4)}
    if choice == 8:
        return {"type": "array", "prefixItems": [random_schema(rng, depth - 1) for _ in range(2)], "items": False}
    if choice == 9:
        return {"$ref": "#/$defs/list"}
    keys = rng.sample(KEYS, rng.randrange(1, len(KEYS)))
    schema = {"type": "object", "properties": {key: random_schema(rng, depth - 1) for key in keys},
              "required": rng.sample(keys, rng.randrange(len(keys) + 1))}
    if rng.randrange(3) > 0:
        schema["additionalProperties"] = rng.choice([False, {"type": "integer"}])
    return schema


def ask(seed):
    rng = random.Random(seed)
    schema = random_schema(rng, 3)
    schema["$defs"] = {"list": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/list"}},
                                "required": ["value"], "additionalProperties": False}}
    body = {"messages": [{"role": "user", "content": f"Example {seed}, please."}], "temperature": 1.3, "seed": seed, "max_tokens": 300,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    request = urllib.request.Request(base_url + "/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"})
    try:
        answer = json.load(urllib.request.urlopen(request))["choices"][0]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{json.dumps(schema)}: {error.read().decode()}") from error
    if answer["finish_reason"] != "stop":
        return 0
    text = answer["message"]["content"]
    try:
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    except Exception as error:
        raise AssertionError(f"{json.dumps(schema)}\nallowed {text!r}") from error
    return 1


with concurrent.futures.ThreadPoolExecutor(16) as pool:
    num_ended = sum(pool.map(ask, range(count)))
print(f"{num_ended} of {count} answers ended, all of them valid")
assert num_ended > count // 2
