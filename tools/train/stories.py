"""A small grammar of stories, English and Chinese.

A story is a plot: an opening, a wish, a trouble, a helper, a turn and an end, each picked from a few wordings.
The same sentences are the hay in which the needle skill hides its facts.
"""
import random

import lexicon as lex

HEROES = [("cat", "小猫"), ("dog", "小狗"), ("rabbit", "小兔子"), ("fox", "小狐狸"), ("bear", "小熊"), ("mouse", "小老鼠"), ("duck", "小鸭子"),
          ("bird", "小鸟"), ("frog", "青蛙"), ("monkey", "小猴子"), ("elephant", "小象"), ("robot", "机器人"), ("girl", "小女孩"),
          ("boy", "小男孩"), ("farmer", "农夫"), ("turtle", "乌龟"), ("tiger", "小老虎"), ("pig", "小猪")]
HOMES = [("in a forest", "森林里"), ("by a river", "小河边"), ("in a small village", "小村子里"), ("on a farm", "农场里"), ("near the sea", "海边"),
         ("in a big city", "大城市里"), ("at the foot of a mountain", "山脚下"), ("in an old house", "一座老房子里")]
TRAITS = [("kind", "善良"), ("brave", "勇敢"), ("curious", "好奇"), ("clever", "聪明"), ("shy", "害羞"), ("lazy", "懒"), ("cheerful", "开朗"), ("patient", "耐心")]
TREASURES = [("ball", "球"), ("hat", "帽子"), ("key", "钥匙"), ("red kite", "红风筝"), ("map", "地图"), ("golden bell", "金铃铛"), ("picture book", "图画书"),
             ("music box", "音乐盒"), ("silver ring", "银戒指"), ("little boat", "小船")]
SPOTS = [("under a bridge", "桥下"), ("behind a big stone", "大石头后面"), ("in a tall tree", "大树上"), ("in the long grass", "草丛里"),
         ("at the market", "集市上"), ("near the well", "井边"), ("in a dark cave", "黑黑的山洞里"), ("on the top of a hill", "山顶上")]
SEASONS = [("spring", "春天"), ("summer", "夏天"), ("autumn", "秋天"), ("winter", "冬天")]
DISHES = [("soup", "汤"), ("apple cake", "苹果蛋糕"), ("dumplings", "饺子"), ("noodles", "面条"), ("pancakes", "煎饼"), ("rice", "米饭")]
LESSONS = [("friends make every road shorter", "有朋友的路总是短一些"), ("small steps also go far", "小步也能走很远"), ("a kind word costs nothing", "好话不花一分钱"),
           ("asking for help is no shame", "请人帮忙并不丢人"), ("those who share have more", "懂得分享的人拥有更多"), ("slow is fine if you do not stop", "慢一点没关系，只要不停下")]


def a(noun_phrase):
    """The noun phrase with its article: "a fox", "an old fox"."""
    return ("an " if noun_phrase[0] in "aeio" else "a ") + noun_phrase


def weather_line(rng, zh):
    weather = rng.choice(lex.WEATHERS)
    season = rng.choice(SEASONS)
    if zh:
        return rng.choice([f"那天是{weather[1]}，大家都起得很早。", f"{season[1]}到了，风里有花草的味道。", f"这个{season[1]}特别长。", f"早上是{weather[1]}，下午就变了。"])
    return rng.choice([f"It was a {weather[0]} day, and everyone got up early.", f"{season[0].capitalize()} had come, and the air smelled sweet.",
                       f"That {season[0]} was a long one.", f"The morning was {weather[0]}, but the afternoon was not."])


def market_line(rng, zh):
    noun, colour, number = rng.choice(lex.NOUNS), rng.choice(lex.COLOURS), rng.choice(lex.NUMBERS)
    name = rng.choice(lex.EN_NAMES)
    if zh:
        return rng.choice([f"集市上有{number[1]}{noun[3]}{colour[1]}的{noun[2]}。", f"有人在路边画{noun[2]}。", f"老人说，{noun[2]}要{colour[1]}的才好。",
                           f"孩子们数了数，一共{number[1]}{noun[3]}{noun[2]}。"])
    return rng.choice([f"There were {number[0]} {colour[0]} {noun[1]} at the market.", f"{name} was drawing {a(noun[0])} by the road.",
                       f"An old man said that {a(noun[0])} should be {colour[0]}.", f"The children counted {number[0]} {noun[1]}."])


def day_line(rng, zh):
    place, action, time = rng.choice(lex.PLACES), rng.choice(lex.ACTIONS), rng.choice(lex.DAYS)
    name = rng.choice(lex.EN_NAMES)
    if zh:
        return rng.choice([f"{time[1]}，{place[1]}里人很多。", f"大家都想去{place[1]}{action[1]}。", f"从{place[1]}到车站要走很久。", f"有人说{time[1]}适合{action[1]}。"])
    return rng.choice([f"On {time[0]} the {place[0]} was full of people.", f"Everyone wanted to {action[0]} near the {place[0]}.",
                       f"It is a long walk from the {place[0]} to the station.", f"{name} said that {time[0]} is a good day to {action[0]}."])


def filler_sentence(rng, zh):
    """One sentence that states no fact the needle skill asks about."""
    return rng.choice((weather_line, market_line, day_line))(rng, zh)


def story_en(rng, hero):
    friend = rng.choice([h[0] for h in HEROES if h[0] != hero])
    name, other = rng.sample(lex.EN_NAMES, 2)
    home, trait, treasure, spot, dish, lesson = (rng.choice(t)[0] for t in (HOMES, TRAITS, TREASURES, SPOTS, DISHES, LESSONS))
    colour, number = rng.choice(lex.COLOURS)[0], rng.choice(lex.NUMBERS)[0]
    parts = [
        rng.choice([f"Once upon a time, a {trait} {hero} named {name} lived {home}.", f"Long ago there was {a(hero)} called {name}, who lived {home}.",
                    f"{name} was a {trait} {hero}. {name} lived {home}."]),
        rng.choice([f"Every morning {name} walked to the river and sang a little song.", f"{name} had a {treasure} and loved it more than anything.",
                    f"{name} had {number} friends and a {colour} door.", weather_line(rng, False)]),
        rng.choice([f"One day the {treasure} was gone.", f"One morning {name} lost the {treasure} on the way home.", f"That night the wind took the {treasure} away."]),
        rng.choice([f"{name} looked everywhere, but could not find it.", f'"Where is my {treasure}?" asked {name}.', f"{name} sat down and cried."]),
        rng.choice([f"Then {a(friend)} named {other} came by.", f"{a(friend).capitalize()} called {other} heard this and stopped.", f"Just then {other}, the {friend}, knocked at the door."]),
        rng.choice([f'"Do not worry," said {other}. "We will look together."', f'"I can help you," said the {friend}.', f'{other} said, "Let us look {spot}."']),
        rng.choice([f"They walked for {number} hours.", f"They asked a {colour} bird, and the bird pointed the way.", market_line(rng, False)]),
        rng.choice([f"At last they found the {treasure} {spot}.", f"And there, {spot}, lay the {treasure}.", f"{other} climbed up, looked around, and saw the {treasure} {spot}."]),
        rng.choice([f"{name} was so happy that they ate {dish} together.", f'"Thank you!" said {name}, and gave {other} some {dish}.', f"That evening they shared a pot of {dish}."]),
        rng.choice([f"From that day on they were the best of friends.", f"{name} learned that {lesson}.", f"And {other} smiled, for {lesson}."]),
    ]
    return " ".join(parts)


def story_zh(rng, hero):
    friend = rng.choice([h[1] for h in HEROES if h[1] != hero])
    name, other = rng.sample(["豆豆", "球球", "乐乐", "花花", "贝贝", "米米", "毛毛", "团团", "点点", "果果", "阿宝", "小白", "小黑", "圆圆"], 2)
    home, trait, treasure, spot, dish, lesson = (rng.choice(t)[1] for t in (HOMES, TRAITS, TREASURES, SPOTS, DISHES, LESSONS))
    colour, number = rng.choice(lex.COLOURS)[1], rng.choice(lex.NUMBERS)[1]
    parts = [
        rng.choice([f"从前，{home}住着一个{trait}的{hero}，名叫{name}。", f"很久以前，有一个叫{name}的{hero}，住在{home}。", f"{name}是一个{trait}的{hero}，家在{home}。"]),
        rng.choice([f"每天早上，{name}都走到河边唱歌。", f"{name}有一个{treasure}，非常喜欢它。", f"{name}有{number}个朋友和一扇{colour}的门。", weather_line(rng, True)]),
        rng.choice([f"有一天，{treasure}不见了。", f"一天早上，{name}在回家的路上丢了{treasure}。", f"那天夜里，大风把{treasure}吹走了。"]),
        rng.choice([f"{name}到处找，可是怎么也找不到。", f"“我的{treasure}在哪里？”{name}问。", f"{name}坐下来哭了。"]),
        rng.choice([f"这时，一个叫{other}的{friend}走了过来。", f"{friend}{other}听见了，停下脚步。", f"正在这时，{friend}{other}来敲门。"]),
        rng.choice([f"“别着急，”{other}说，“我们一起找。”", f"“我可以帮你。”{friend}说。", f"{other}说：“我们去{spot}看看吧。”"]),
        rng.choice([f"他们走了{number}个小时。", f"他们问了一只{colour}的鸟，鸟给他们指了路。", market_line(rng, True)]),
        rng.choice([f"最后，他们在{spot}找到了{treasure}。", f"原来，{treasure}就在{spot}。", f"{other}爬上去一看，{treasure}就在{spot}。"]),
        rng.choice([f"{name}高兴极了，和{other}一起吃了{dish}。", f"“谢谢你！”{name}说，还送给{other}一些{dish}。", f"那天晚上，他们一起做了{dish}。"]),
        rng.choice([f"从那天起，他们成了最好的朋友。", f"{name}明白了：{lesson}。", f"{other}笑了，因为{lesson}。"]),
    ]
    return "".join(parts)


def story(rng, zh, hero_idx=None):
    hero = HEROES[hero_idx] if hero_idx is not None else rng.choice(HEROES)
    return story_zh(rng, hero[1]) if zh else story_en(rng, hero[0])


def document(rng):
    """A plain-text document: one to three stories in one language."""
    zh = rng.random() < 0.5
    return "\n\n".join(story(rng, zh) for _ in range(rng.randint(1, 3)))
