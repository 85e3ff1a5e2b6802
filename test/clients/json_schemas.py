#!/usr/bin/env python3
"""JSON Schema grammars against the packages jsonschema (PyPI) and ajv (npm), in both directions, without a model: every
text of a grammar is valid, every valid value has a text in it, and no text of an invalid value is allowed. Then schemas
that pydantic (2 and 1) makes of models, and zod and zod-to-json-schema (npm) of theirs, against what these say themselves.

json_schemas.py BUILD_DIR [COUNT] [SEED] [FOLDER]   COUNT random schemas; with ajv and zod where FOLDER has them installed
json_schemas.py BUILD_DIR --suite FOLDER            the files of a checkout of JSON-Schema-Test-Suite, tests/draft2020-12
"""
import itertools
import json
import math
import pathlib
import random
import re
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
probe = pathlib.Path(sys.argv[1]).resolve() / "grammar_probe"
suite = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--suite"] else None
count = int(sys.argv[2]) if len(sys.argv) > 2 and not suite else 2000
seed = int(sys.argv[3]) if len(sys.argv) > 3 and not suite else 1
ajv = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None
try:
    import jsonschema
except ImportError:
    print("SKIPPED json schemas: the package jsonschema is not installed")
    raise SystemExit(0)

KEYS = ["a", "b", "name", "x1"]
TEXTS = ["", "a", "b", "ab", "12", "a-1", "on", "off", "true", "\n", "\"", "\u00e9", "\U0001f600", "2024-02-29", "2023-02-29",
         "192.168.0.1", "256.1.1.1", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"]
PATTERNS = ["^[a-z]+$", "^\\d{1,3}$", "^(on|off)$", "a", "^a", "b$", "^[^a]*$", "^.{2,3}$"]
FORMATS = ["date", "ipv4", "uuid"]
MAX_TEXTS = 150  # orders of members that are tried of one value


def number(rng):
    return rng.choice([rng.randrange(-20, 21), rng.randrange(-20, 21), rng.randrange(-80, 81) / 8])


def random_value(rng, depth=2):
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind in (1, 2):
        return number(rng)
    if kind in (3, 4, 5):
        return rng.choice(TEXTS)
    if kind == 6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {key: random_value(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(4))}


def numbers(rng):
    schema = {"type": rng.choice(["integer", "number"])}
    low = number(rng)
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randrange(1, 40)
    if schema["type"] == "integer" and rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([2, 3, 5])
    return schema


def strings(rng):
    schema = {"type": "string"}
    kind = rng.randrange(4)
    if kind == 0:
        schema["pattern"] = rng.choice(PATTERNS)
    elif kind == 1:
        schema["format"] = rng.choice(FORMATS)
    if kind in (0, 2) and rng.random() < 0.7:
        low = rng.randrange(3)
        schema.update({"minLength": low, "maxLength": low + rng.randrange(1, 5)})
    return schema


def arrays(rng, depth):
    schema = {"type": "array"}
    if rng.random() < 0.4:
        schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.7:
        schema["items"] = rng.choice([False, random_schema(rng, depth - 1)]) if "prefixItems" in schema else random_schema(rng, depth - 1)
    if rng.random() < 0.5:
        low = rng.randrange(3)
        schema.update({"minItems": low, "maxItems": low + rng.randrange(3)})
    return schema


def objects(rng, depth):
    keys = rng.sample(KEYS, rng.randrange(1, 4))
    schema = {"type": "object", "properties": {key: random_schema(rng, depth - 1) for key in keys}}
    if rng.random() < 0.7:
        schema["required"] = rng.sample(keys, rng.randrange(len(keys) + 1))
    kind = rng.randrange(5)
    if kind < 2:
        schema["additionalProperties"] = False
    elif kind == 2:
        schema["additionalProperties"] = random_schema(rng, 0)
    elif kind == 3:
        schema["patternProperties"] = {rng.choice(["^x", "^[a-c]$"]): random_schema(rng, 0)}
    if rng.random() < 0.15:
        schema["propertyNames"] = {"pattern": "^[a-z]"}
    if rng.random() < 0.15:
        schema["maxProperties"] = rng.randrange(1, 3)
    if rng.random() < 0.1 and len(keys) > 1:
        schema["dependentRequired"] = {keys[0]: [keys[1]]}
    return schema


def random_schema(rng, depth=2):
    kind = rng.randrange(14 if depth else 8)
    if kind == 0:
        return {"enum": [random_value(rng, 1) for _ in range(rng.randrange(1, 4))]}
    if kind == 1:
        return {"const": random_value(rng, 1)}
    if kind == 2:
        return {"type": rng.sample(["null", "boolean", "integer", "number", "string", "array", "object"], rng.randrange(1, 3))}
    if kind in (3, 4):
        return numbers(rng)
    if kind in (5, 6):
        return strings(rng)
    if kind == 7:
        return rng.choice([True, {}, {"$ref": "#/$defs/list"}])
    if kind in (8, 9):
        return arrays(rng, depth)
    if kind in (10, 11):
        return objects(rng, depth)
    parts = [random_schema(rng, depth - 1) for _ in range(2)]
    name = rng.choice(["anyOf", "anyOf", "allOf", "oneOf", "not", "if"])
    if name == "not":
        return {"type": ["string", "integer", "null"], "not": rng.choice([{"const": "a"}, {"enum": ["a", 1]}, {"type": "null"}])}
    if name == "if":
        return {"if": {"type": rng.choice(["string", "integer"])}, "then": parts[0], "else": parts[1]}
    return {name: parts}


def values_of(rng, schema, root, depth=3):
    """A value that has a good chance to be valid."""
    if depth == 0 or not isinstance(schema, dict) or rng.random() < 0.1:
        return random_value(rng, 1)
    if "$ref" in schema:
        return values_of(rng, root["$defs"]["list"], root, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return values_of(rng, rng.choice(schema[name]), root, depth)
    if "if" in schema:
        return values_of(rng, rng.choice([schema["then"], schema["else"]]), root, depth)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
        value = low + rng.randrange(0, 12) / (1 if kind == "integer" else 4)
        return math.ceil(value) if kind == "integer" else value
    if kind == "string":
        return rng.choice(TEXTS)
    if kind == "array":
        items = [values_of(rng, item, root, depth - 1) for item in schema.get("prefixItems", [])]
        for _ in range(rng.randrange(3)):
            items.append(values_of(rng, schema.get("items", {}), root, depth - 1))
        return items[:schema.get("maxItems", 4)]
    if kind == "object":
        value = {}
        for key, member in schema.get("properties", {}).items():
            if key in schema.get("required", []) or rng.random() < 0.6:
                value[key] = values_of(rng, member, root, depth - 1)
        if rng.random() < 0.3:
            value[rng.choice(KEYS + ["zz"])] = random_value(rng, 1)
        return value
    return random_value(rng, 1)


def is_told_otherwise(value):
    """2.0 is an integer, and one has no point in the grammar: the value's text is 2."""
    if isinstance(value, float):
        return value == int(value)
    if isinstance(value, list):
        return any(map(is_told_otherwise, value))
    return isinstance(value, dict) and any(map(is_told_otherwise, value.values()))


def texts_of(value):
    """The value's texts in every order of its members. Composed values of an enum have one spelling, without spaces."""
    if isinstance(value, list):
        for items in itertools.product(*[list(itertools.islice(texts_of(item), MAX_TEXTS)) for item in value]):
            yield "[" + ",".join(items) + "]"
    elif isinstance(value, dict):
        for order in itertools.permutations(value):
            for members in itertools.product(*[list(itertools.islice(texts_of(value[key]), MAX_TEXTS)) for key in order]):
                yield "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + m for k, m in zip(order, members)) + "}"
    else:
        yield json.dumps(value, ensure_ascii=False)


def ask(questions):
    """The probe's answers to [{"schema", "texts", ...}]."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    answers = subprocess.run([str(probe)], input=lines, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert len(answers) == len(questions), f"{len(answers)} answers to {len(questions)} schemas"
    return [json.loads(answer) for answer in answers]


def run_suite():
    """The suite says what is valid. A schema may be refused; what is taken must hold for all its values. Left out: format.json,
    whose values say that a format may be ignored, and vocabulary.json, which needs a document of another address."""
    groups = [group for file in sorted(suite.glob("*.json")) if file.name not in ("format.json", "vocabulary.json")
              for group in json.loads(file.read_text())]
    for group in groups:
        group["texts"] = [list(itertools.islice(texts_of(test["data"]), 1000)) for test in group["tests"]]
    answers = ask([{"schema": group["schema"], "texts": sum(group["texts"], [])} for group in groups])
    refused, cases, problems = {}, 0, []
    for group, answer in zip(groups, answers):
        if "error" in answer:
            refused[group["description"]] = answer["error"]
            continue
        at = 0
        for test, orders in zip(group["tests"], group["texts"]):
            allowed = any(answer["allowed"][at:at + len(orders)])
            at += len(orders)
            if is_told_otherwise([test["data"], group["schema"]]):
                continue
            cases += 1
            if allowed != test["valid"]:
                problems.append(f"{group['description']}, {test['description']}: {json.dumps(group['schema'])} "
                                f"{'allows' if allowed else 'shuts out'} {json.dumps(test['data'])}")
    for name, error in refused.items():
        print(f"refused: {name}: {error}")
    for problem in problems:
        print(problem)
    print(f"suite: {len(groups)} schemas, {len(refused)} of them refused; {cases} values, {len(problems)} problems")
    assert not problems


def main():
    questions = []
    for i in range(count):
        rng = random.Random(seed * 1000003 + i)
        schema = random_schema(rng)
        if isinstance(schema, bool):
            schema = {"allOf": [schema]}
        schema["$defs"] = {"list": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/list"}},
                                    "required": ["a"], "additionalProperties": False}}
        values = [values_of(rng, schema, schema) for _ in range(6)] + [random_value(rng)]
        values = [value for value in values if not is_told_otherwise(value)]
        questions.append((schema, values, [list(itertools.islice(texts_of(value), MAX_TEXTS)) for value in values]))
    answers = ask([{"schema": schema, "texts": sum(texts, []), "samples": 3, "seed": i}
                   for i, (schema, _, texts) in enumerate(questions)])

    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    refused, samples, valid, invalid, problems, for_ajv = 0, 0, 0, 0, [], []
    for (schema, values, texts), answer in zip(questions, answers):
        if "error" in answer:
            refused += 1
            if not answer["error"].startswith("json schema: at #") and "no text" not in answer["error"]:
                problems.append(f"{json.dumps(schema)}: refused without a place: {answer['error']}")
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for text in answer["samples"]:
            samples += 1
            if not validator.is_valid(json.loads(text)):
                problems.append(f"{json.dumps(schema)} allows {text}, which is invalid")
            if not re.search(r"\d{15}", text):  # JavaScript's numbers are doubles
                for_ajv.append({"schema": schema, "value": json.loads(text), "allowed": True})
        at = 0
        for value, orders in zip(values, texts):
            allowed = any(answer["allowed"][at:at + len(orders)])
            at += len(orders)
            is_valid = validator.is_valid(value)
            valid, invalid = valid + is_valid, invalid + (not is_valid)
            if allowed or len(orders) < MAX_TEXTS:
                for_ajv.append({"schema": schema, "value": value, "allowed": allowed})
            if allowed != is_valid and (allowed or len(orders) < MAX_TEXTS):
                problems.append(f"{json.dumps(schema)} {'allows' if allowed else 'shuts out'} {json.dumps(value)}, which is "
                                f"{'valid' if is_valid else 'invalid'}")
    for problem in problems[:10]:
        print(problem)
    print(f"jsonschema: {count} schemas, {refused} of them refused; {samples} texts of the grammars, {valid} valid and {invalid} invalid values, "
          f"{len(problems)} problems")
    assert not problems
    assert refused < count // 3 and samples > count and valid > count, "the schemas say too little"
    check_with_ajv(for_ajv)
    check_pydantic()
    check_zod()


def check_with_ajv(cases):
    if ajv is None:
        print("SKIPPED ajv: no folder of it was given")
        return
    (ajv / "cases.json").write_text(json.dumps(cases))
    (ajv / "json_schemas.mjs").write_text((here / "json_schemas.mjs").read_text())
    subprocess.run(["node", "json_schemas.mjs", "cases.json"], cwd=ajv, check=True)


def check_generated(tool, cases):
    """[(schema, texts of valid values, texts of invalid ones)]; members in the order of the schema. Left out is what the
    tool's schema does not say: pydantic 1's of an Optional lack null, zod 4's of a tuple its length."""
    problems, count = [], 0
    answers = ask([{"schema": schema, "texts": valid + invalid} for schema, valid, invalid in cases])
    for (schema, valid, invalid), answer in zip(cases, answers):
        if "error" in answer:
            problems.append(f"{json.dumps(schema)}: {answer['error']}")
            continue
        older = "definitions" in schema or "draft-07" in schema.get("$schema", "")
        draft = jsonschema.Draft7Validator if older else jsonschema.Draft202012Validator
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
        is_openapi = "$schema" not in schema and "nullable" in json.dumps(schema)
        for text, allowed in zip(valid + invalid, answer["allowed"]):
            if not is_openapi and validator.is_valid(json.loads(text)) != (text in valid):
                continue
            count += 1
            if allowed != (text in valid):
                problems.append(f"{json.dumps(schema)} {'allows' if allowed else 'shuts out'} {text}")
    for problem in problems:
        print(problem)
    print(f"{tool}: {len(cases)} schemas, {count} values, {len(problems)} problems")
    assert not problems


def check_pydantic():
    try:
        import pydantic
    except ImportError:
        print("SKIPPED pydantic: the package is not installed")
        return
    check_generated(f"pydantic {pydantic.VERSION}", pydantic_cases(pydantic, lambda model: model.model_json_schema(),
                                                                   lambda value: value.model_dump_json(exclude_unset=True)))
    try:
        from pydantic import v1
        cases = pydantic_cases(v1, lambda model: model.schema(), lambda value: value.json(exclude_unset=True, separators=(",", ":")))
    except Exception as error:  # Python 3.14 and later
        print(f"SKIPPED pydantic 1: {error}")
        return
    check_generated(f"pydantic {v1.VERSION}", cases)


def pydantic_cases(library, schema_of, text_of):
    import datetime
    import decimal
    import enum
    import typing
    import uuid

    class State(str, enum.Enum):
        NEW = "new"
        DONE = "done"

    class Item(library.BaseModel):
        name: str = library.Field(max_length=5)
        count: int = library.Field(1, gt=0, le=100)

    class Cat(library.BaseModel):
        kind: typing.Literal["cat"]
        lives: int

    class Dog(library.BaseModel):
        kind: typing.Literal["dog"]
        tags: typing.List[str] = []

    class Order(library.BaseModel):
        item: Item
        state: State = State.NEW
        size: typing.Tuple[int, str] = (1, "x")
        note: typing.Optional[str] = None
        either: typing.Union[int, str] = 1
        by_name: typing.Dict[str, Item] = {}
        more: typing.List[Item] = library.Field(default=[])
        pet: typing.Union[Cat, Dog] = library.Field(Dog(kind="dog"), discriminator="kind")
        when: typing.Optional[datetime.datetime] = None
        day: typing.Optional[datetime.date] = None
        key: typing.Optional[library.UUID4] = None
        price: typing.Optional[decimal.Decimal] = None
        site: typing.Optional[library.HttpUrl] = None

    class Tree(library.BaseModel):
        value: float
        left: typing.Optional["Tree"] = None
        right: typing.Optional["Tree"] = None

    getattr(Tree, "model_rebuild", getattr(Tree, "update_forward_refs", None))(**({} if hasattr(Tree, "model_rebuild") else {"Tree": Tree}))
    item = {"name": "ab", "count": 3}
    orders = [{"item": item}, {"item": {"name": ""}, "state": "done", "size": (7, "y"), "note": None, "either": "z"},
              {"item": item, "by_name": {"k": item}, "more": [item, item], "pet": {"kind": "cat", "lives": 9}},
              {"item": item, "pet": {"kind": "dog", "tags": ["a"]}, "day": "2024-02-29", "key": str(uuid.UUID(int=5, version=4))},
              {"item": item, "when": "2024-02-29T12:30:00Z", "price": "12.50", "site": "http://a.example/b"}]
    wrong = [{}, {"item": {"name": "abcdef"}}, {"item": {"name": "a", "count": 0}}, {"item": item, "state": "old"},
             {"item": item, "size": [1]}, {"item": item, "size": [1, "a", 2]}, {"item": item, "pet": {"kind": "cow"}},
             {"item": item, "pet": {"kind": "cat"}}, {"item": item, "note": 5}, {"item": item, "day": "2023-02-29"}]
    trees = [{"value": 1.5}, {"value": 1.5, "left": {"value": 2.5, "left": {"value": 0.5}}, "right": {"value": -1.5}}]
    compact = lambda value: json.dumps(value, separators=(",", ":"))
    return [(schema_of(Order), [text_of(Order(**value)) for value in orders], [compact(value) for value in wrong]),
            (schema_of(Tree), [text_of(Tree(**value)) for value in trees], ["{}", compact({"value": 1, "left": {"left": None}})])]


def check_zod():
    if ajv is None or not (ajv / "node_modules" / "zod").is_dir():
        print("SKIPPED zod: no folder of it was given")
        return
    (ajv / "zod_schemas.mjs").write_text((here / "zod_schemas.mjs").read_text())
    made = json.loads(subprocess.run(["node", "zod_schemas.mjs"], cwd=ajv, check=True, capture_output=True, text=True).stdout)
    for tool, cases in made.items():
        check_generated(tool, [(case["schema"], case["valid"], case["invalid"]) for case in cases])


if suite:
    run_suite()
else:
    main()
