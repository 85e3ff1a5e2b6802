"""Questions that are too hard for part of a small model: eval/graded.jsonl of the model folder.

    python graded.py [--seed 1]

The skills are those of skills.py, beyond what training showed: more numbers to sort, more turns before the sum that is asked.
Each skill has three grades. They were chosen by measuring so that models/mini-qwen3 in BF16 answers most of grade 1 and few of
grade 3: near the edge of what a model can do, a small loss of precision changes answers. Every question has one right answer,
and its key is held out as in skills.py.
"""
import argparse
import json
import random
from functools import cache

from tokenizers import Tokenizer

import arithmetic as arith
import lexicon as lex
import skills
import stories
import tools as toolbox
from generate import MODEL_DIR
from skills import Example, is_chinese, user

QUESTIONS = 20          # of each grade of a skill
NEEDLE_QUESTIONS = 10   # their text is long: 16 KB a question
NEEDLE_TOKENS = 3500

# What a grade means, for grades 1, 2, 3.
NUM_EARLIER_SUMS = (8, 14, 18)            # sums asked and answered before, all of five digits
NUM_SENTENCES_BEFORE_SUM = (20, 36, 50)
COPY_LENGTHS = {"digits": (19, 21, 24), "characters": (19, 21, 23), "letters": (4, 5, 6), "words": (24, 28, 32)}  # training: 16, 16, 3, 10
SORT_LENGTHS = {"numbers": (8, 9, 10), "words": (6, 7, 8)}                                                        # training: 8, 6
NUM_PEOPLE = (24, 70, 130)                # three facts each, in NEEDLE_TOKENS tokens
JSON_RECORDS_AND_KEYS = ((1, 4), (2, 2), (2, 3))
NUM_TOOLS = (9, 12, 18)                   # training: 4; above 12 a tool that is not asked for appears under two names
MAX_TOKENS = {"sums": 384, "far_sums": 384, "copy": 256, "sort": 128, "needle": 64, "json": 128, "tools": 128}


@cache
def tokenizer():
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def num_tokens(text):
    return len(tokenizer().encode(text, add_special_tokens=False).ids)


def five_digits(rng):
    """(operator, a, b) of a sum or difference, the longest that training has."""
    op = rng.choice("+-")
    a, b = sorted((rng.randint(10000, 99999) for _ in range(2)), reverse=True)
    return op, a, b


def sum_example(skill, op, a, b, messages):
    return Example(skill, f"{a}{op}{b}", messages, str(arith.VALUE[op](a, b)), needs_think=True)


def sums(rng, grade):
    """A sum at the end of a conversation of sums: its digits stand among many others."""
    zh = is_chinese(rng)
    messages = []
    for _ in range(NUM_EARLIER_SUMS[grade]):
        op, a, b = five_digits(rng)
        messages += [user(skills.expression(rng, op, a, b, zh)), {"role": "assistant", "content": str(arith.VALUE[op](a, b))}]
    op, a, b = five_digits(rng)
    return sum_example("sums", op, a, b, messages + [user(skills.expression(rng, op, a, b, zh))])


def far_sums(rng, grade):
    """A word problem behind sentences that have nothing to do with it."""
    zh = is_chinese(rng)
    hay = ("" if zh else " ").join(stories.filler_sentence(rng, zh) for _ in range(NUM_SENTENCES_BEFORE_SUM[grade]))
    op, a, b = five_digits(rng)
    return sum_example("far_sums", op, a, b, [user(f"{hay}\n\n{skills.word_problem(rng, op, a, b, zh)}")])


def copy(rng, grade):
    zh = is_chinese(rng)
    kind = rng.choice(list(COPY_LENGTHS))
    length = COPY_LENGTHS[kind][grade]
    if kind == "digits":
        text = rng.choice(["", " ", "-"]).join(skills.code(rng, 1) for _ in range(length))
    elif kind == "characters":
        text = "".join(rng.choice(skills.COMMON_CHARACTERS) for _ in range(length))
    elif kind == "letters":
        text = " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(4, 12))) for _ in range(length))
    else:
        text = " ".join(rng.choice(lex.ZH_WORDS if zh else lex.WORDS) for _ in range(length))
    return Example("copy", text, [user(rng.choice(skills.COPY_ZH if zh else skills.COPY_EN).format(text))], text)


def sort(rng, grade):
    zh = is_chinese(rng)
    if rng.random() < 0.25:
        letters = rng.sample(sorted({word[0] for word in lex.WORDS}), SORT_LENGTHS["words"][grade])
        words = [rng.choice([word for word in lex.WORDS if word[0] == letter]) for letter in letters]
        question = rng.choice(skills.SORT_WORDS_ZH if zh else skills.SORT_WORDS_EN).format(", ".join(words))
        return Example("sort", "w" + " ".join(sorted(words)), [user(question)], ", ".join(sorted(words)))
    descending = rng.random() < 0.5
    numbers = rng.sample(range(rng.choice((100, 1000))), SORT_LENGTHS["numbers"][grade])
    up, down = (skills.SORT_UP_ZH, skills.SORT_DOWN_ZH) if zh else (skills.SORT_UP_EN, skills.SORT_DOWN_EN)
    question = rng.choice(down if descending else up).format(", ".join(map(str, numbers)))
    return Example("sort", f"{sorted(numbers)}", [user(question)], ", ".join(map(str, sorted(numbers, reverse=descending))))


def needle(rng, grade):
    """One fact of hundreds, somewhere in NEEDLE_TOKENS tokens."""
    zh = is_chinese(rng)
    gap = "" if zh else " "
    attributes = skills.ATTRIBUTES
    facts, sentences, length, people = [], [], 0, set()
    while length < NEEDLE_TOKENS:
        new = []
        if len(people) < NUM_PEOPLE[grade]:
            name = skills.person(rng, zh) if rng.random() < 0.5 else skills.invented_name(rng)
            if name not in people:
                people.add(name)
                drawn = [(name, attribute, attribute[2](rng, zh)) for attribute in rng.sample(attributes, 3)]
                facts += drawn
                new = [rng.choice(attribute[zh][0]).format(name, value) for name, attribute, value in drawn]
        else:
            new = [stories.filler_sentence(rng, zh) for _ in range(4)]
        sentences += new
        length += num_tokens(gap.join(new) + gap)
    rng.shuffle(sentences)
    keys = {f"{name} {attributes.index(attribute)} {value}": (name, attribute, value) for name, attribute, value in facts}
    key = rng.choice([key for key in keys if skills.is_held_out(key)] or list(keys))
    name, attribute, value = keys[key]
    question = rng.choice(skills.NEEDLE_ZH if zh else skills.NEEDLE_EN).format(gap.join(sentences), rng.choice(attribute[zh][1]).format(name))
    return Example("needle", key, [user(question)], value)


def json_records(rng, grade):
    """One object out of the texts of one or two records."""
    zh = is_chinese(rng)
    num_records, num_keys = JSON_RECORDS_AND_KEYS[grade]
    drawn = [record(rng, zh) for record in rng.sample((skills.person_record, skills.order_record, skills.event_record), num_records)]
    values = {key: value for record, _ in drawn for key, value in record.items()}
    keys = rng.sample(list(values), num_keys)
    texts = [text for _, text in drawn] + [stories.filler_sentence(rng, zh) for _ in range(2)]
    rng.shuffle(texts)
    question = rng.choice(skills.JSON_ZH if zh else skills.JSON_EN).format(keys=("、" if zh else ", ").join(keys), text=("" if zh else " ").join(texts))
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return Example("json", answer, [user(question)], answer)


def tools(rng, grade):
    """One of many tools. The answer is an object in an object."""
    zh = is_chinese(rng)
    num_tools = NUM_TOOLS[grade]
    asked, *others = rng.sample(toolbox.TOOLS, min(num_tools, len(toolbox.TOOLS)))
    schemas = {}
    for tool in [asked] + others + others[:num_tools - len(others) - 1]:
        candidate = skills.schema(rng, tool, rng.random() < 0.5)
        while candidate["function"]["name"] in schemas:
            candidate = skills.schema(rng, tool, rng.random() < 0.5)
        schemas[candidate["function"]["name"]] = candidate
    function = next(iter(schemas.values()))["function"]
    schemas = list(schemas.values())
    rng.shuffle(schemas)
    values = [skills.SLOTS[param[2]](rng, zh) for param in asked["params"]]
    call = {"name": function["name"], "arguments": dict(zip(function["parameters"]["properties"], values))}
    question = user(rng.choice(asked["ask_zh" if zh else "ask_en"]).format(*values))
    answer = f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    return Example("tools", f"{asked['names'][0]} {values}", [question], answer, tools=schemas)


SKILLS = {"sums": sums, "far_sums": far_sums, "copy": copy, "sort": sort, "needle": needle, "json": json_records, "tools": tools}


def held_out(rng, skill, grade):
    while True:
        example = SKILLS[skill](rng, grade)
        if skills.is_held_out(example.key):
            return example


def question_of(example, grade):
    question = {"skill": example.skill, "grade": grade + 1, "messages": example.messages}
    if example.tools:
        question["tools"] = example.tools
    return question | {"enable_thinking": example.needs_think, "max_tokens": MAX_TOKENS[example.skill], "answer": example.answer}


def write_graded(seed):
    rng = random.Random(f"{seed} graded")
    lines, seen = [], set()
    for skill in SKILLS:
        for grade in range(3):
            count = len(seen) + (NEEDLE_QUESTIONS if skill == "needle" else QUESTIONS)
            while len(seen) < count:
                example = held_out(rng, skill, grade)
                if (skill, example.key) not in seen:
                    seen.add((skill, example.key))
                    lines.append(json.dumps(question_of(example, grade), ensure_ascii=False))
    (MODEL_DIR / "eval" / "graded.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} questions, {sum(len(line.encode()) + 1 for line in lines)} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    write_graded(parser.parse_args().seed)
