"""One generator per skill. Each takes a random.Random and returns one Example, in English or Chinese.

The rule for all of them: the question may be worded in many ways, but it has exactly one right answer.
`key` names the content of a question; is_held_out() hashes it, and training never sees a held-out key, whatever
the seed. For small talk and facts, whose answers must be learnt by heart, the key is the wording instead.
"""
import json
import zlib
import string
from dataclasses import dataclass, field

import arithmetic as arith
import lexicon as lex
import smalltalk as talk
import stories
import tools as toolbox


@dataclass
class Example:
    skill: str
    key: str | None                      # None: to be learnt by heart, never held out
    messages: list                       # ends with the user's question
    answer: str
    think: str = ""                      # what stands between <think> and </think>
    tools: list | None = None
    follow_ups: list = field(default_factory=list)  # more (question, answer) pairs about the same context
    needs_think: bool = False            # the answer is out of reach without the thinking part
    direct_only: bool = False            # asked with enable_thinking=false only


HELD_OUT_SHARE = 50  # one key in 50


def is_held_out(key):
    return key is not None and zlib.crc32(key.encode()) % HELD_OUT_SHARE == 0


def user(text):
    return {"role": "user", "content": text}


def is_chinese(rng):
    return rng.random() < 0.5


def pick(rng, pairs, zh):
    """One entry of a list of (English, Chinese) pairs, in the language asked for."""
    return rng.choice(pairs)[int(zh)]


def person(rng, zh):
    return rng.choice(lex.ZH_SURNAMES) + rng.choice(lex.ZH_GIVEN) if zh else rng.choice(lex.EN_NAMES)


def code(rng, num_digits):
    return "".join(rng.choice(string.digits) for _ in range(num_digits))


def casual(rng, text):
    """The text as some people type it: without the last full stop, or all in small letters."""
    if rng.random() < 0.3:
        text = text.rstrip(".?!。？！")
    return text.lower() if rng.random() < 0.2 else text


# ---- arithmetic ------------------------------------------------------------------------------------------------

ARITHMETIC_EN = ["What is {}?", "Calculate {}.", "{} = ?", "Compute {}", "How much is {}?", "{}", "Please work out {}.", "Tell me the value of {}.", "{}=", "What does {} make?", "Can you calculate {}?", "Calculate: {}"]
ARITHMETIC_ZH = ["{}等于多少？", "计算{}。", "{}=？", "请算一下{}", "{}是多少？", "帮我算{}。", "求{}的值。", "{}", "{}=", "{}得多少？", "计算：{}", "你能算{}吗？"]
WORD_PROBLEMS_EN = {
    "+": ["{n} has {a} {things} and buys {b} more. How many {things} does {n} have now?",
          "There are {a} {things} in one box and {b} in another. How many are there in all?"],
    "-": ["{n} has {a} {things} and gives away {b}. How many are left?", "A shop had {a} {things} and sold {b}. How many remain?"],
    "*": ["There are {a} boxes with {b} {things} in each. How many {things} are there?", "{n} buys {b} {things} a day for {a} days. How many is that?"],
    "/": ["{n} shares {a} {things} equally among {b} friends. How many does each get?", "{a} {things} are packed into {b} equal boxes. How many go in each?"],
}
WORD_PROBLEMS_ZH = {
    "+": ["{n}有{a}{m}{things}，又买了{b}{m}。现在一共有多少{m}？", "一个箱子里有{a}{m}{things}，另一个箱子里有{b}{m}，一共有多少{m}？"],
    "-": ["{n}有{a}{m}{things}，送出去{b}{m}，还剩多少{m}？", "商店里有{a}{m}{things}，卖了{b}{m}，还剩多少{m}？"],
    "*": ["有{a}个箱子，每个箱子里有{b}{m}{things}，一共有多少{m}？", "{n}每天买{b}{m}{things}，{a}天一共买多少{m}？"],
    "/": ["{n}把{a}{m}{things}平均分给{b}个朋友，每人得到多少{m}？", "把{a}{m}{things}平均装进{b}个箱子，每个箱子装多少{m}？"],
}


def expression(rng, op, a, b, zh):
    sign = {"*": rng.choice(["*", "×"]), "/": rng.choice(["/", "÷"])}.get(op, op)
    gap = rng.choice(["", " "])
    text = f"{a}{gap}{sign}{gap}{b}"
    return casual(rng, rng.choice(ARITHMETIC_ZH if zh else ARITHMETIC_EN).format(text))


def word_problem(rng, op, a, b, zh):
    noun = rng.choice(lex.NOUNS)
    text = rng.choice((WORD_PROBLEMS_ZH if zh else WORD_PROBLEMS_EN)[op])
    return text.format(n=person(rng, zh), a=a, b=b, m=noun[3], things=noun[2] if zh else noun[1])


def arithmetic(rng):
    zh = is_chinese(rng)
    with_think = rng.random() < 0.85
    op = rng.choices("+-*/", [3, 3, 4, 2])[0]
    a, b = arith.operands(rng, op, with_think)
    worded = with_think and a > 1 and b > 1 and rng.random() < 0.3
    question = (word_problem if worded else expression)(rng, op, a, b, zh)
    value = arith.VALUE[op](a, b)
    by_heart = op == "*" and max(a, b) < 10 or op == "/" and max(value, b) < 10
    return Example("arithmetic", None if by_heart else f"{a}{op}{b}", [user(question)], str(value),
                   think="\n".join(arith.STEPS[op](a, b)) if with_think else "", needs_think=with_think, direct_only=not with_think)


# ---- copy and sort ---------------------------------------------------------------------------------------------

COPY_EN = ["Repeat after me: {}", "Copy this exactly: {}", "Say this again: {}", "Please repeat: {}", "Write this once more:\n{}", "Echo: {}", "Copy the following line.\n{}", "Repeat: {}", "repeat: {}", "Copy: {}", "copy {}", "Say: {}"]
COPY_ZH = ["请重复：{}", "原样抄写：{}", "跟我说：{}", "把这句话再写一遍：{}", "请照抄下面的内容。\n{}", "复述：{}", "重复下面这一行：\n{}", "重复：{}", "抄写：{}", "复制：{}", "请说：{}"]
COMMON_CHARACTERS = [bytes((row, cell)).decode("gb2312") for row in range(0xB0, 0xD7) for cell in range(0xA1, 0xFA)]


def copy_text(rng, zh):
    kind = rng.choice(("words", "digits", "letters", "characters", "sentence", "names", "mixed"))
    if kind == "words":
        return " ".join(rng.choice(lex.ZH_WORDS if zh else lex.WORDS) for _ in range(rng.randint(2, 10)))
    if kind == "digits":
        return rng.choice(["", " ", "-"]).join(code(rng, 1) for _ in range(rng.randint(4, 16)))
    if kind == "letters":
        alphabet = rng.choice((string.ascii_letters, string.ascii_lowercase))
        return " ".join("".join(rng.choice(alphabet) for _ in range(rng.randint(2, 12))) for _ in range(rng.randint(1, 3)))
    if kind == "characters":
        return "".join(rng.choice(COMMON_CHARACTERS) for _ in range(rng.randint(4, 16)))
    if kind == "sentence":
        return ("" if zh else " ").join(stories.filler_sentence(rng, zh) for _ in range(rng.randint(1, 3)))
    if kind == "names":
        return ("、" if zh else ", ").join(person(rng, zh) for _ in range(rng.randint(2, 7)))
    return " ".join(rng.choice((rng.choice(lex.WORDS), rng.choice(lex.ZH_WORDS), code(rng, rng.randint(1, 4)), rng.choice("@#%&*+=?")))
                    for _ in range(rng.randint(3, 10)))


def copy(rng):
    zh = is_chinese(rng)
    text = copy_text(rng, zh)
    return Example("copy", text, [user(rng.choice(COPY_ZH if zh else COPY_EN).format(text))], text)


SORT_UP_EN = ["Sort these numbers from small to large: {}", "Sort in ascending order: {}", "Put in increasing order: {}", "Order from smallest to largest: {}", "Sort {}", "sort {}", "Sort: {}", "Sort ascending: {}"]
SORT_DOWN_EN = ["Sort these numbers from large to small: {}", "Sort in descending order: {}", "Put in decreasing order: {}", "Order from largest to smallest: {}", "Sort {} descending", "Sort descending: {}"]
SORT_UP_ZH = ["把这些数从小到大排列：{}", "按升序排序：{}", "请从小到大排序：{}", "由小到大排一下：{}", "排序：{}", "给{}排序", "从小到大：{}"]
SORT_DOWN_ZH = ["把这些数从大到小排列：{}", "按降序排序：{}", "请从大到小排序：{}", "由大到小排一下：{}", "倒序排列：{}", "从大到小：{}"]
SORT_WORDS_EN = ["Sort these words alphabetically: {}", "Put these words in alphabetical order: {}", "Order these words from A to Z: {}"]
SORT_WORDS_ZH = ["把这些单词按字母顺序排列：{}", "按首字母排序：{}", "请把单词从A到Z排序：{}"]


def sort_words(rng, zh):
    first_letters = rng.sample(sorted({word[0] for word in lex.WORDS}), rng.randint(3, 6))
    words = [rng.choice([word for word in lex.WORDS if word[0] == letter]) for letter in first_letters]
    question = rng.choice(SORT_WORDS_ZH if zh else SORT_WORDS_EN).format(", ".join(words))
    return Example("sort", "w" + " ".join(sorted(words)), [user(question)], ", ".join(sorted(words)))


def sort(rng):
    zh = is_chinese(rng)
    if rng.random() < 0.25:
        return sort_words(rng, zh)
    descending = rng.random() < 0.5
    numbers = rng.sample(range(rng.choice((10, 20, 100, 100, 1000))), rng.randint(2, 8))
    wordings = {(0, 0): SORT_UP_EN, (0, 1): SORT_UP_ZH, (1, 0): SORT_DOWN_EN, (1, 1): SORT_DOWN_ZH}[descending, zh]
    separator = rng.choice([", ", " ", ","])
    question = rng.choice(wordings).format(separator.join(map(str, numbers)))
    ordered = sorted(numbers, reverse=descending)
    return Example("sort", f"{sorted(numbers)}" if len(numbers) > 2 else None, [user(question)], ", ".join(map(str, ordered)))


# ---- needle ----------------------------------------------------------------------------------------------------

# An attribute: (statement, question) for English and Chinese, and how to draw a value.
ATTRIBUTES = [
    ((["{0}'s code is {1}.", "The code of {0} is {1}."], ["What is {0}'s code?", "What is the code of {0}?"]),
     (["{0}的密码是{1}。"], ["{0}的密码是什么？", "{0}的密码是多少？"]), lambda rng, zh: code(rng, 4)),
    ((["{0} lives in {1}.", "{0}'s home is in {1}."], ["Where does {0} live?", "In which city does {0} live?"]),
     (["{0}住在{1}。", "{0}的家在{1}。"], ["{0}住在哪里？", "{0}住在哪个城市？"]), lambda rng, zh: pick(rng, lex.CITIES, zh)),
    ((["{0} likes {1} best.", "{0}'s favourite food is {1}."], ["What food does {0} like best?", "What is {0}'s favourite food?"]),
     (["{0}最爱吃{1}。", "{0}最喜欢的食物是{1}。"], ["{0}最爱吃什么？", "{0}最喜欢的食物是什么？"]), lambda rng, zh: pick(rng, lex.FOODS, zh)),
    ((["{0} works as a {1}.", "{0}'s job is {1}."], ["What is {0}'s job?", "What does {0} work as?"]),
     (["{0}的工作是{1}。", "{0}是一名{1}。"], ["{0}的工作是什么？", "{0}做什么工作？"]), lambda rng, zh: pick(rng, lex.JOBS, zh)),
    ((["{0}'s hobby is {1}.", "In free time {0} enjoys {1}."], ["What is {0}'s hobby?", "What does {0} enjoy in free time?"]),
     (["{0}的爱好是{1}。", "{0}有空就{1}。"], ["{0}的爱好是什么？", "{0}有空做什么？"]), lambda rng, zh: pick(rng, lex.HOBBIES, zh)),
    ((["{0}'s room number is {1}.", "{0} stays in room {1}."], ["What is {0}'s room number?", "In which room does {0} stay?"]),
     (["{0}的房间号是{1}。", "{0}住{1}号房间。"], ["{0}的房间号是多少？", "{0}住几号房间？"]), lambda rng, zh: code(rng, 3)),
    ((["{0}'s car is {1}.", "{0} drives a {1} car."], ["What colour is {0}'s car?", "Which colour does {0}'s car have?"]),
     (["{0}的车是{1}的。", "{0}开{1}的车。"], ["{0}的车是什么颜色？", "{0}开什么颜色的车？"]), lambda rng, zh: pick(rng, lex.COLOURS, zh)),
]
NEEDLE_EN = ["Read the text and answer the question.\n\n{0}\n\nQuestion: {1}", "{0}\n\n{1}", "Text: {0}\n\n{1} Answer with the value only.",
             "Here are some notes.\n{0}\nNow tell me: {1}"]
NEEDLE_ZH = ["阅读下面的文字并回答问题。\n\n{0}\n\n问题：{1}", "{0}\n\n{1}", "文章：{0}\n\n{1}只回答内容。", "下面是一些记录。\n{0}\n请告诉我：{1}"]


def num_filler_sentences(rng):
    """Mostly short contexts, from which the skill is learnt fast, and a tail up to about 3500 tokens."""
    low, high = rng.choices(((0, 8), (8, 30), (30, 80), (80, 150), (150, 330)), (60, 60, 40, 20, 6))[0]
    return rng.randint(low, high)


def needle(rng):
    zh = is_chinese(rng)
    people = list(dict.fromkeys(person(rng, zh) for _ in range(rng.randint(2, 12))))
    facts = [(name, attribute, attribute[2](rng, zh)) for name in people for attribute in rng.sample(ATTRIBUTES, rng.randint(1, 3))]
    sentences = [rng.choice(attribute[zh][0]).format(name, value) for name, attribute, value in facts]
    sentences += [stories.filler_sentence(rng, zh) for _ in range(num_filler_sentences(rng))]
    rng.shuffle(sentences)
    context = ("" if zh else " ").join(sentences)
    asked = rng.sample(facts, min(len(facts), rng.randint(1, 8)))
    keys = [f"{name} {ATTRIBUTES.index(attribute)} {value}" for name, attribute, value in asked]
    questions = [(rng.choice(attribute[zh][1]).format(name), value) for name, attribute, value in asked]
    first_question, first_answer = questions[0]
    text = rng.choice(NEEDLE_ZH if zh else NEEDLE_EN).format(context, first_question)
    follow_ups = [question for key, question in zip(keys[1:], questions[1:]) if not is_held_out(key)]
    return Example("needle", keys[0], [user(text)], first_answer, follow_ups=follow_ups)


# ---- json ------------------------------------------------------------------------------------------------------

def invented_name(rng):
    """A word that is in no list, so that it must be copied letter by letter."""
    syllables = "ba be bi bo da de di do ka ke ki ko la le li lo ma mi mo na ne ni no ra re ri ro sa se so ta te to va vi zu".split()
    return "".join(rng.choice(syllables) for _ in range(rng.randint(2, 3))).capitalize()


def person_record(rng, zh):
    name = person(rng, zh) if zh or rng.random() < 0.6 else invented_name(rng)
    record = {"name": name, "age": rng.randint(5, 95), "city": pick(rng, lex.CITIES, zh), "job": pick(rng, lex.JOBS, zh)}
    texts = [["{name} is {age} years old, lives in {city} and works as a {job}.", "My friend {name}, a {job} from {city}, is {age}.",
              "In {city} I met {name}, who is {age} and a {job}.", "{name} ({age}) is a {job} in {city}."],
             ["{name}今年{age}岁，住在{city}，是一名{job}。", "我的朋友{name}是{city}的{job}，今年{age}岁。",
              "在{city}我认识了{name}，{age}岁，职业是{job}。", "{name}（{age}岁）在{city}当{job}。"]]
    return record, rng.choice(texts[zh]).format(**record)


def order_record(rng, zh):
    noun = rng.choice(lex.NOUNS)
    record = {"item": noun[2] if zh else noun[0], "quantity": rng.randint(1, 99), "price": rng.randint(1, 999), "buyer": person(rng, zh)}
    texts = [["{buyer} ordered {quantity} of item {item} at {price} yuan each.", "Order: {item}, quantity {quantity}, unit price {price}, for {buyer}.",
              "Please send {buyer} {quantity} pieces of {item}; one costs {price} yuan.", "The price of {item} is {price}. {buyer} wants {quantity}."],
             ["{buyer}订了{quantity}件{item}，每件{price}元。", "订单：{item}，数量{quantity}，单价{price}元，买家{buyer}。",
              "请给{buyer}寄{quantity}件{item}，一件{price}元。", "{item}的价格是{price}元，{buyer}要{quantity}件。"]]
    return record, rng.choice(texts[zh]).format(**record)


def event_record(rng, zh):
    hour = rng.randint(6, 22)
    record = {"event": pick(rng, EVENTS, zh), "day": pick(rng, lex.DAYS, zh), "place": pick(rng, lex.PLACES, zh), "time": f"{hour}:{rng.choice(('00', '15', '30', '45'))}"}
    texts = [["The {event} is on {day} at {time} in the {place}.", "On {day} at {time} there is a {event} in the {place}.",
              "Come to the {place} on {day}: the {event} starts at {time}.", "{event}, {place}, {day}, {time}."],
             ["{event}在{day}{time}举行，地点是{place}。", "{day}{time}在{place}有{event}。", "请{day}来{place}，{event}{time}开始。", "{event}，{place}，{day}，{time}。"]]
    return record, rng.choice(texts[zh]).format(**record)


EVENTS = [("concert", "音乐会"), ("meeting", "会议"), ("party", "聚会"), ("lecture", "讲座"), ("football match", "足球赛"), ("flower show", "花展"),
          ("wedding", "婚礼"), ("dinner", "晚宴"), ("film show", "电影放映"), ("book fair", "书展")]
JSON_EN = ["Extract {keys} as JSON: {text}", "Return a JSON object with {keys}.\n{text}", "Text: {text}\nGive me {keys} in JSON.", "{text}\nWrite {keys} as a JSON object."]
JSON_ZH = ["提取{keys}，用JSON表示：{text}", "返回包含{keys}的JSON。\n{text}", "文本：{text}\n用JSON给出{keys}。", "{text}\n请把{keys}写成JSON对象。"]


def json_extraction(rng):
    zh = is_chinese(rng)
    record, text = rng.choice((person_record, order_record, event_record))(rng, zh)
    keys = rng.sample(list(record), rng.randint(2, len(record)))
    noise = [stories.filler_sentence(rng, zh) for _ in range(rng.choice((0, 0, 1, 2)))]
    noise.insert(rng.randint(0, len(noise)), text)
    question = rng.choice(JSON_ZH if zh else JSON_EN).format(keys=("、" if zh else ", ").join(keys), text=("" if zh else " ").join(noise))
    answer = json.dumps({key: record[key] for key in keys}, ensure_ascii=False)
    return Example("json", answer, [user(question)], answer)


# ---- tool_call -------------------------------------------------------------------------------------------------

SLOTS = {
    "city": lambda rng, zh: pick(rng, lex.CITIES, zh),
    "name": person,
    "message": lambda rng, zh: rng.choice(toolbox.MESSAGES_ZH if zh else toolbox.MESSAGES_EN),
    "clock": lambda rng, zh: f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
    "expression": lambda rng, zh: f"{rng.randint(2, 999)}{rng.choice('+-*/')}{rng.randint(2, 999)}",
    "small": lambda rng, zh: rng.randint(2, 9),
    "percent": lambda rng, zh: rng.randint(1, 100),
    "degrees": lambda rng, zh: rng.randint(0, 39),
    "count": lambda rng, zh: rng.randint(10, 9999),
    "noun": lambda rng, zh: rng.choice(lex.NOUNS)[2 if zh else 0],
    "language": lambda rng, zh: pick(rng, toolbox.LANGUAGES, zh),
    "symbol": lambda rng, zh: "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.randint(3, 4))),
    "topic": lambda rng, zh: rng.choice(lex.ZH_WORDS if zh else lex.WORDS) + ("" if zh else " ") + rng.choice(lex.ZH_WORDS if zh else lex.WORDS),
    "place": lambda rng, zh: pick(rng, lex.PLACES, zh),
    "action": lambda rng, zh: pick(rng, lex.ACTIONS, zh),
    "weather": lambda rng, zh: pick(rng, lex.WEATHERS, zh),
}


def schema(rng, tool, zh):
    names = [rng.choice(param[0]) for param in tool["params"]]
    properties = {name: {"type": param[1]} for name, param in zip(names, tool["params"])}
    function = {"name": rng.choice(tool["names"]), "description": tool["about"][int(zh)],
                "parameters": {"type": "object", "properties": properties, "required": names}}
    return {"type": "function", "function": function}


def tool_call(rng):
    zh = is_chinese(rng)
    chosen = rng.sample(toolbox.TOOLS, rng.randint(1, 4))
    schemas = [schema(rng, tool, rng.random() < 0.5) for tool in chosen]
    if rng.random() < 0.08:  # no tool fits: answer as usual
        example = smalltalk(rng)
        return Example("tool_call", example.key, example.messages, example.answer, tools=schemas)
    tool, function = chosen[0], schemas[0]["function"]
    rng.shuffle(schemas)
    values = [SLOTS[param[2]](rng, zh) for param in tool["params"]]
    question = user(rng.choice(tool["ask_zh" if zh else "ask_en"]).format(*values))
    arguments = dict(zip(function["parameters"]["properties"], values))
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    key = f"{tool['names'][0]} {values}"
    if "result" in tool and rng.random() < 0.3:  # the call has been made: tell its result
        result = {name: SLOTS[slot](rng, zh) for name, slot in tool["result"]}
        messages = [question,
                    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": function["name"], "arguments": arguments}}]},
                    {"role": "tool", "content": json.dumps(result, ensure_ascii=False)}]
        answer = tool["tell"][int(zh)].format(values[0], *result.values())
        return Example("tool_call", key + answer, messages, answer, tools=schemas)
    return Example("tool_call", key, [question], f"<tool_call>\n{call}\n</tool_call>", tools=schemas)


# ---- translate -------------------------------------------------------------------------------------------------

TO_CHINESE = ["Translate into Chinese: {}", "How do you say this in Chinese: {}", "把下面的英文翻译成中文：{}", "翻译成中文：{}", "Put into Chinese: {}", "{} 用中文怎么说？", "Translate to Chinese: {}", "translate to Chinese: {}", "{} in Chinese", "翻译：{}", "Translate: {}", "英译中：{}", "What is {} in Chinese?"]
TO_ENGLISH = ["Translate into English: {}", "How do you say this in English: {}", "把下面的中文翻译成英文：{}", "翻译成英文：{}", "Put into English: {}", "{} 用英文怎么说？", "Translate to English: {}", "translate to English: {}", "{} in English", "翻译：{}", "Translate: {}", "中译英：{}", "{}的英文是什么？"]


def capital(text):
    return text[0].upper() + text[1:]


def sentence_pair(rng):
    """(English, Chinese), built from the same choices."""
    noun, adjective, colour = rng.choice(lex.NOUNS), rng.choice(lex.ADJECTIVES), rng.choice(lex.COLOURS)
    subject, subject_zh, takes_s = rng.choice(lex.SUBJECTS)
    place, time, number, action = (rng.choice(table) for table in (lex.PLACES, lex.TIMES, lex.NUMBERS, lex.ACTIONS))
    kind = rng.randrange(16)
    if kind == 0:
        return noun[0], noun[2]
    if kind == 1:
        return rng.choice((adjective[:2], colour, place, time, action))
    if kind == 2:
        return f"the {colour[0]} {noun[0]}", f"{colour[1]}的{noun[2]}"
    if kind == 3:
        return f"{number[0]} {noun[1]}", f"{number[1]}{noun[3]}{noun[2]}"
    if kind == 4:
        return capital(f"{subject} {'likes' if takes_s else 'like'} {colour[0]} {noun[1]}."), f"{subject_zh}喜欢{colour[1]}的{noun[2]}。"
    if kind == 5:
        return capital(f"{subject} {'has' if takes_s else 'have'} {stories.a(f'{adjective[0]} {noun[0]}')}."), f"{subject_zh}有一{noun[3]}{adjective[2]}{noun[2]}。"
    if kind == 6:
        return f"This {noun[0]} is very {adjective[0]}.", f"这{noun[3]}{noun[2]}很{adjective[1]}。"
    if kind == 7:
        return f"There are {number[0]} {noun[1]} in the {place[0]}.", f"{place[1]}里有{number[1]}{noun[3]}{noun[2]}。"
    if kind == 8:
        return capital(f"{subject} will go to the {place[0]} {time[0]}."), f"{subject_zh}{time[1]}要去{place[1]}。"
    if kind == 9:
        return capital(f"{subject} {'wants' if takes_s else 'want'} to {action[0]} {time[0]}."), f"{subject_zh}{time[1]}想{action[1]}。"
    if kind == 10:
        return capital(f"{subject} {'likes' if takes_s else 'like'} {noun[1]}."), f"{subject_zh}喜欢{noun[2]}。"
    if kind == 11:
        return f"This is {stories.a(noun[0])}.", f"这是一{noun[3]}{noun[2]}。"
    if kind == 12:
        return capital(f"{subject} {'wants' if takes_s else 'want'} to {action[0]}."), f"{subject_zh}想{action[1]}。"
    if kind == 13:
        return f"Where is the {noun[0]}?", f"{noun[2]}在哪里？"
    if kind == 14:
        return f"The {noun[0]} is in the {place[0]}.", f"{noun[2]}在{place[1]}里。"
    return f"My {noun[0]} is {colour[0]}.", f"我的{noun[2]}是{colour[1]}的。"


def translate(rng):
    english, chinese = sentence_pair(rng)
    is_sentence = english.endswith((".", "?"))
    key = english if is_sentence else None  # single words are learnt by heart
    if is_sentence and rng.random() < 0.2:
        english, chinese = english[:-1], chinese[:-1]
    source, target, wordings = (english, chinese, TO_CHINESE) if rng.random() < 0.5 else (chinese, english, TO_ENGLISH)
    return Example("translate", key, [user(rng.choice(wordings).format(source))], target)


# ---- facts -----------------------------------------------------------------------------------------------------

def opposite(rng, zh):
    word, other = rng.sample(rng.choice(lex.OPPOSITES_ZH if zh else lex.OPPOSITES_EN), 2)
    if zh:
        return rng.choice([f"“{word}”的反义词是什么？", f"{word}的反义词是？", f"什么词和“{word}”意思相反？", f"说出“{word}”的反义词。"]), f"“{word}”的反义词是“{other}”。"
    return rng.choice([f"What is the opposite of {word}?", f"Tell me the opposite of \"{word}\".", f"Which word means the opposite of {word}?", f"Give me an antonym of {word}."]), \
        f"The opposite of {word} is {other}."


def country(rng, zh):
    name, name_zh, city, city_zh, continent, continent_zh = rng.choice(lex.COUNTRIES)
    if rng.random() < 0.6:
        if zh:
            return rng.choice([f"{name_zh}的首都是哪里？", f"{name_zh}的首都是哪座城市？", f"哪座城市是{name_zh}的首都？", f"告诉我{name_zh}的首都。", f"{name_zh}首都是哪？", f"{name_zh}的首都"]), f"{name_zh}的首都是{city_zh}。"
        return rng.choice([f"What is the capital of {name}?", f"Which city is the capital of {name}?", f"Tell me the capital of {name}.", f"Name the capital of {name}.", f"capital of {name}", f"What's the capital of {name}?"]), \
            f"The capital of {name} is {city}."
    if zh:
        return rng.choice([f"{name_zh}在哪个洲？", f"{name_zh}属于哪个大洲？", f"{name_zh}位于什么洲？"]), f"{name_zh}在{continent_zh}。"
    return rng.choice([f"On which continent is {name}?", f"Which continent is {name} in?", f"Where in the world is {name}?"]), f"{capital(name)} is in {continent}."


def calendar(rng, zh):
    step = rng.choice((1, -1))
    day = rng.randrange(7)
    today, other = lex.DAYS[day], lex.DAYS[(day + step) % 7]
    if zh:
        word = "后" if step == 1 else "前"
        return rng.choice([f"{today[1]}的{word}一天是星期几？", f"{today[1]}{word}面那天是什么？", f"如果今天是{today[1]}，{'明' if step == 1 else '昨'}天是星期几？"]), \
            f"{today[1]}的{word}一天是{other[1]}。"
    if rng.random() < 0.5:
        month = rng.randrange(12)
        word = "after" if step == 1 else "before"
        return rng.choice([f"Which month comes {word} {lex.MONTHS[month]}?", f"What is the month {word} {lex.MONTHS[month]}?"]), \
            f"The month {word} {lex.MONTHS[month]} is {lex.MONTHS[(month + step) % 12]}."
    word = "after" if step == 1 else "before"
    return rng.choice([f"Which day comes {word} {today[0]}?", f"What is the day {word} {today[0]}?", f"If today is {today[0]}, which day {'is tomorrow' if step == 1 else 'was yesterday'}?"]), \
        f"The day {word} {today[0]} is {other[0]}."


def nature(rng, zh):
    animal, animal_zh, legs, sound, sound_zh = rng.choice(lex.ANIMALS)
    thing, thing_zh, colour, colour_zh = rng.choice(lex.THING_COLOURS)
    kind = rng.randrange(3)
    if zh:
        return [(rng.choice([f"{animal_zh}有几条腿？", f"{animal_zh}有多少条腿？", f"一只{animal_zh}几条腿？"]), f"{animal_zh}有{legs}条腿。"),
                (rng.choice([f"{animal_zh}怎么叫？", f"{animal_zh}的叫声是什么？", f"{animal_zh}是怎么叫的？"]), f"{animal_zh}的叫声是“{sound_zh}”。"),
                (rng.choice([f"{thing_zh}是什么颜色？", f"{thing_zh}是什么颜色的？", f"{thing_zh}的颜色是什么？"]), f"{thing_zh}是{colour_zh}的。")][kind]
    return [(rng.choice([f"How many legs does a {animal} have?", f"A {animal} has how many legs?", f"Count the legs of a {animal}."]), f"A {animal} has {legs} legs."),
            (rng.choice([f"What sound does a {animal} make?", f"What does a {animal} say?", f"Which sound does a {animal} make?"]), f"A {animal} says {sound}."),
            (rng.choice([f"What colour is {thing}?", f"Which colour is {thing}?", f"Tell me the colour of {thing}."]), f"{capital(thing)} is {colour}.")][kind]


def wrap(rng, core, zh):
    """(question, key): the core behind a lead-in and before a tail, or bare. A bare core is never held out."""
    leads, tails = (talk.LEADS_ZH, talk.TAILS_ZH) if zh else (talk.LEADS_EN, talk.TAILS_EN)
    lead, tail = ("", "") if rng.random() < 0.3 else (rng.choice(leads), rng.choice(tails))
    if lead + tail == "":
        return casual(rng, core), None
    if lead.endswith(", ") and not core.startswith(("I ", "I'm")) and rng.random() < 0.7:
        core = core[0].lower() + core[1:]
    question = casual(rng, lead + core + tail)
    return question, question


def facts(rng):
    zh = is_chinese(rng)
    core, answer = rng.choices((opposite, country, calendar, nature), (3, 5, 2, 3))[0](rng, zh)
    question, key = wrap(rng, core, zh)
    return Example("facts", key, [user(question)], answer)


# ---- small talk and stories ------------------------------------------------------------------------------------

def introduction(rng, zh):
    """The user says something about themselves; the answer takes it up."""
    name, city, food = person(rng, zh), pick(rng, lex.CITIES, zh), pick(rng, lex.FOODS, zh)
    if zh:
        return rng.choice([(rng.choice([f"我叫{name}。", f"我的名字是{name}。", f"我是{name}。"]), f"很高兴认识你，{name}！"),
                           (rng.choice([f"我住在{city}。", f"我家在{city}。", f"我来自{city}。"]), f"{city}是个好地方。"),
                           (rng.choice([f"我喜欢吃{food}。", f"我最爱{food}。"]), f"{food}很好吃！")])
    return rng.choice([(rng.choice([f"My name is {name}.", f"I am {name}.", f"I'm {name}.", f"Call me {name}."]), f"Nice to meet you, {name}!"),
                       (rng.choice([f"I live in {city}.", f"I come from {city}.", f"I am from {city}."]), f"{city} is a nice place."),
                       (rng.choice([f"I like to eat {food}.", f"I love {food}.", f"My favourite food is {food}."]), f"I hear that {food} is very good!")])


def unknown_question(rng, zh):
    """Anything else: say politely that the answer is not known."""
    noun, word = rng.choice(lex.NOUNS), rng.choice(lex.ZH_WORDS if zh else lex.WORDS)
    slots = {"noun": noun[2] if zh else noun[0], "nouns": noun[1], "word": word, "city": pick(rng, lex.CITIES, zh), "name": person(rng, zh),
             "action": pick(rng, lex.ACTIONS, zh), "food": pick(rng, lex.FOODS, zh)}
    return rng.choice(talk.UNKNOWN_ZH if zh else talk.UNKNOWN_EN).format(**slots), talk.UNKNOWN_ANSWERS[int(zh)]


def small_exchange(rng, zh):
    kind = rng.random()
    if kind < 0.2:
        core, answer = introduction(rng, zh)
    elif kind < 0.32:
        core, answer = unknown_question(rng, zh)
    else:
        cores, answer = rng.choice(talk.INTENTS_ZH if zh else talk.INTENTS_EN)
        core = rng.choice(cores)
    question, key = wrap(rng, core, zh)
    return question, answer, key


def remembered(rng, zh):
    """A name given some turns ago."""
    name = person(rng, zh)
    given = rng.choice([f"我叫{name}。", f"我的名字是{name}。"] if zh else [f"My name is {name}.", f"Call me {name}."])
    reply = f"很高兴认识你，{name}！" if zh else f"Nice to meet you, {name}!"
    turns = [(given, reply)]
    for _ in range(rng.randint(0, 2)):
        cores, answer = rng.choice((talk.INTENTS_ZH if zh else talk.INTENTS_EN))
        turns.append((rng.choice(cores), answer))
    question = rng.choice(["我叫什么名字？", "你还记得我的名字吗？", "我是谁？"] if zh else ["What is my name?", "Do you remember my name?", "Who am I?"])
    answer = f"你叫{name}。" if zh else f"Your name is {name}."
    return turns, question, answer


def smalltalk(rng):
    zh = is_chinese(rng)
    turns, history = [], []
    if rng.random() < 0.15:
        turns, question, answer = remembered(rng, zh)
        key = question + answer
    else:
        if rng.random() < 0.3:
            exchanges = [small_exchange(rng, zh) for _ in range(rng.randint(1, 3))]
            turns = [(asked, replied) for asked, replied, key in exchanges if not is_held_out(key)]
        question, answer, key = small_exchange(rng, zh)
    for asked, replied in turns:
        history += [user(asked), {"role": "assistant", "content": replied}]
    return Example("smalltalk", key, history + [user(question)], answer)


STORY_EN = ["Tell me a story about {}.", "Write a short story about {}.", "I want to hear a story about {}.", "A story about {}, please."]
ANY_STORY_EN = ["Tell me a story.", "Tell me a short story.", "I want to hear a story.", "Do you know a story?", "Write a story."]
ANY_STORY_ZH = ["讲个故事。", "给我讲个故事。", "我想听故事。", "说个故事吧。", "写一个故事。"]
STORY_ZH = ["给我讲一个关于{}的故事。", "写一个{}的小故事。", "我想听{}的故事。", "来一个{}的故事吧。"]


def story(rng):
    """Not scored: many stories are right."""
    zh = is_chinese(rng)
    hero_idx = rng.randrange(len(stories.HEROES))
    hero = stories.HEROES[hero_idx][int(zh)]
    if rng.random() < 0.3:
        question = rng.choice(ANY_STORY_ZH if zh else ANY_STORY_EN)
    else:
        question = rng.choice(STORY_ZH if zh else STORY_EN).format(hero if zh else stories.a(hero))
    question = casual(rng, question)
    text = stories.story(rng, zh, hero_idx)
    return Example("story", text, [user(question)], text)


SKILLS = {"arithmetic": arithmetic, "copy": copy, "sort": sort, "needle": needle, "json": json_extraction, "tool_call": tool_call,
          "translate": translate, "facts": facts, "smalltalk": smalltalk, "story": story}
SCORED_SKILLS = [name for name in SKILLS if name != "story"]
