"""The words every generator draws from, in English and Chinese.

Plain tables, no logic. A pair is always (English, Chinese). Facts (capitals, opposites) are facts; the wording
around them lives in skills.py.
"""

# Nouns: (singular, plural, Chinese, measure word).
NOUNS = [
    ("cat", "cats", "猫", "只"), ("dog", "dogs", "狗", "只"), ("bird", "birds", "鸟", "只"), ("rabbit", "rabbits", "兔子", "只"),
    ("fox", "foxes", "狐狸", "只"), ("duck", "ducks", "鸭子", "只"), ("sheep", "sheep", "羊", "只"), ("monkey", "monkeys", "猴子", "只"),
    ("tiger", "tigers", "老虎", "只"), ("bear", "bears", "熊", "只"), ("frog", "frogs", "青蛙", "只"), ("mouse", "mice", "老鼠", "只"),
    ("horse", "horses", "马", "匹"), ("cow", "cows", "牛", "头"), ("pig", "pigs", "猪", "头"), ("elephant", "elephants", "大象", "头"),
    ("fish", "fish", "鱼", "条"), ("snake", "snakes", "蛇", "条"), ("apple", "apples", "苹果", "个"), ("orange", "oranges", "橙子", "个"),
    ("banana", "bananas", "香蕉", "根"), ("pear", "pears", "梨", "个"), ("peach", "peaches", "桃子", "个"), ("watermelon", "watermelons", "西瓜", "个"),
    ("egg", "eggs", "鸡蛋", "个"), ("tomato", "tomatoes", "番茄", "个"), ("potato", "potatoes", "土豆", "个"), ("cake", "cakes", "蛋糕", "块"),
    ("book", "books", "书", "本"), ("dictionary", "dictionaries", "词典", "本"), ("pen", "pens", "钢笔", "支"), ("pencil", "pencils", "铅笔", "支"),
    ("table", "tables", "桌子", "张"), ("chair", "chairs", "椅子", "把"), ("bed", "beds", "床", "张"), ("map", "maps", "地图", "张"),
    ("picture", "pictures", "图片", "张"), ("ticket", "tickets", "票", "张"), ("key", "keys", "钥匙", "把"), ("umbrella", "umbrellas", "雨伞", "把"),
    ("knife", "knives", "刀", "把"), ("cup", "cups", "杯子", "个"), ("bowl", "bowls", "碗", "个"), ("box", "boxes", "盒子", "个"),
    ("bag", "bags", "包", "个"), ("ball", "balls", "球", "个"), ("hat", "hats", "帽子", "顶"), ("coat", "coats", "外套", "件"),
    ("shirt", "shirts", "衬衫", "件"), ("dress", "dresses", "裙子", "条"), ("phone", "phones", "手机", "部"), ("computer", "computers", "电脑", "台"),
    ("watch", "watches", "手表", "块"), ("car", "cars", "汽车", "辆"), ("bicycle", "bicycles", "自行车", "辆"), ("boat", "boats", "船", "条"),
    ("plane", "planes", "飞机", "架"), ("house", "houses", "房子", "座"), ("bridge", "bridges", "桥", "座"), ("mountain", "mountains", "山", "座"),
    ("tree", "trees", "树", "棵"), ("flower", "flowers", "花", "朵"), ("cloud", "clouds", "云", "朵"), ("river", "rivers", "河", "条"),
    ("road", "roads", "路", "条"), ("door", "doors", "门", "扇"), ("window", "windows", "窗户", "扇"), ("letter", "letters", "信", "封"),
    ("song", "songs", "歌", "首"), ("stone", "stones", "石头", "块"), ("robot", "robots", "机器人", "个"), ("teacher", "teachers", "老师", "位"),
    ("doctor", "doctors", "医生", "位"), ("student", "students", "学生", "个"), ("farmer", "farmers", "农民", "个"), ("child", "children", "孩子", "个"),
]

# Adjectives that take "very": (English, Chinese predicate, Chinese before a noun).
ADJECTIVES = [
    ("big", "大", "大"), ("small", "小", "小"), ("new", "新", "新"), ("old", "旧", "旧"), ("good", "好", "好"), ("beautiful", "漂亮", "漂亮的"),
    ("clean", "干净", "干净的"), ("dirty", "脏", "脏的"), ("heavy", "重", "重的"), ("light", "轻", "轻的"), ("long", "长", "长的"), ("short", "短", "短的"),
    ("cheap", "便宜", "便宜的"), ("expensive", "贵", "贵的"), ("cute", "可爱", "可爱的"), ("strange", "奇怪", "奇怪的"), ("famous", "有名", "有名的"),
    ("quiet", "安静", "安静的"), ("fast", "快", "快的"), ("slow", "慢", "慢的"), ("strong", "强壮", "强壮的"), ("happy", "高兴", "高兴的"),
    ("tired", "累", "累的"), ("special", "特别", "特别的"),
]

COLOURS = [
    ("red", "红色"), ("blue", "蓝色"), ("green", "绿色"), ("yellow", "黄色"), ("black", "黑色"), ("white", "白色"),
    ("brown", "棕色"), ("purple", "紫色"), ("pink", "粉色"), ("grey", "灰色"),
]

PLACES = [
    ("park", "公园"), ("school", "学校"), ("library", "图书馆"), ("hospital", "医院"), ("market", "市场"), ("station", "车站"),
    ("airport", "机场"), ("museum", "博物馆"), ("zoo", "动物园"), ("bank", "银行"), ("hotel", "酒店"), ("restaurant", "餐厅"),
    ("office", "办公室"), ("garden", "花园"), ("kitchen", "厨房"), ("cinema", "电影院"),
]

TIMES = [
    ("today", "今天"), ("tomorrow", "明天"), ("tonight", "今晚"), ("next week", "下周"), ("next month", "下个月"),
    ("on Monday", "星期一"), ("on Tuesday", "星期二"), ("on Wednesday", "星期三"), ("on Thursday", "星期四"),
    ("on Friday", "星期五"), ("on Saturday", "星期六"), ("on Sunday", "星期日"),
]

NUMBERS = [("two", "两"), ("three", "三"), ("four", "四"), ("five", "五"), ("six", "六"), ("seven", "七"), ("eight", "八"), ("nine", "九"), ("ten", "十")]

# (pronoun, Chinese, takes the -s form)
SUBJECTS = [("I", "我", False), ("you", "你", False), ("he", "他", True), ("she", "她", True), ("we", "我们", False), ("they", "他们", False)]

# Actions after "want to": (English, Chinese).
ACTIONS = [
    ("drink water", "喝水"), ("drink tea", "喝茶"), ("drink coffee", "喝咖啡"), ("eat noodles", "吃面条"), ("eat rice", "吃米饭"),
    ("eat dumplings", "吃饺子"), ("read a book", "看书"), ("watch a film", "看电影"), ("listen to music", "听音乐"), ("sing a song", "唱歌"),
    ("play football", "踢足球"), ("play basketball", "打篮球"), ("play chess", "下棋"), ("learn Chinese", "学习中文"), ("learn English", "学习英语"),
    ("write a letter", "写信"), ("buy clothes", "买衣服"), ("cook dinner", "做晚饭"), ("take a walk", "散步"), ("swim", "游泳"), ("run", "跑步"),
    ("dance", "跳舞"), ("sleep", "睡觉"), ("rest", "休息"), ("go home", "回家"), ("draw a picture", "画画"),
]

EN_NAMES = (
    "Alice Bob Carol David Emma Frank Grace Henry Iris Jack Kate Leo Mary Nick Olivia Peter Quinn Rose Sam Tina Victor Wendy "
    "Anna Ben Clara Daniel Ella Felix Gina Harry Ivy James Karen Lucas Mia Noah Oscar Paula Ruth Simon Tom Uma Vera Walter Zoe "
    "Adam Bella Chris Diana Eric Fiona George Hanna Ian Julia Kevin Laura Mark Nora Owen Polly Robert Sarah Tony Sofia Martin Amy"
).split()
ZH_SURNAMES = list("王李张刘陈杨赵黄周吴徐孙马朱胡林郭何高罗郑梁谢宋唐许邓冯韩曹")
ZH_GIVEN = (
    "伟 芳 娜 敏 静 丽 强 磊 军 洋 勇 艳 杰 娟 涛 明 超 兰 霞 平 刚 桂英 建国 晓东 小红 志强 文静 海燕 春梅 子轩 雨桐 一鸣 思远 家豪 梦琪 天宇 佳怡 "
    "小明 小丽 国华 新民 玉兰 大伟 晓燕"
).split()

CITIES = [
    ("Beijing", "北京"), ("Shanghai", "上海"), ("Guangzhou", "广州"), ("Shenzhen", "深圳"), ("Hangzhou", "杭州"), ("Chengdu", "成都"),
    ("Wuhan", "武汉"), ("Nanjing", "南京"), ("Xiamen", "厦门"), ("Qingdao", "青岛"), ("Paris", "巴黎"), ("London", "伦敦"),
    ("Tokyo", "东京"), ("Berlin", "柏林"), ("Rome", "罗马"), ("Madrid", "马德里"), ("Moscow", "莫斯科"), ("Sydney", "悉尼"),
    ("New York", "纽约"), ("Boston", "波士顿"), ("Toronto", "多伦多"), ("Seoul", "首尔"), ("Singapore", "新加坡"), ("Bangkok", "曼谷"),
    ("Cairo", "开罗"), ("Vienna", "维也纳"), ("Oslo", "奥斯陆"), ("Dublin", "都柏林"), ("Lisbon", "里斯本"), ("Chicago", "芝加哥"),
]

JOBS = [
    ("teacher", "老师"), ("doctor", "医生"), ("nurse", "护士"), ("mechanic", "技师"), ("cook", "厨师"), ("driver", "司机"), ("lawyer", "律师"),
    ("painter", "画家"), ("writer", "作家"), ("singer", "歌手"), ("farmer", "农民"), ("pilot", "飞行员"), ("dentist", "牙医"),
    ("reporter", "记者"), ("scientist", "科学家"), ("musician", "音乐家"),
]

FOODS = [
    ("rice", "米饭"), ("noodles", "面条"), ("dumplings", "饺子"), ("bread", "面包"), ("soup", "汤"), ("pizza", "披萨"), ("cheese", "奶酪"),
    ("chocolate", "巧克力"), ("ice cream", "冰淇淋"), ("fish", "鱼"), ("chicken", "鸡肉"), ("beef", "牛肉"), ("tofu", "豆腐"), ("salad", "沙拉"),
    ("cake", "蛋糕"), ("hot pot", "火锅"),
]

HOBBIES = [
    ("swimming", "游泳"), ("reading", "阅读"), ("painting", "画画"), ("running", "跑步"), ("dancing", "跳舞"), ("singing", "唱歌"),
    ("cooking", "做饭"), ("fishing", "钓鱼"), ("hiking", "爬山"), ("gardening", "园艺"), ("photography", "摄影"), ("chess", "下棋"),
]

WEATHERS = [("sunny", "晴天"), ("cloudy", "多云"), ("rainy", "下雨"), ("snowy", "下雪"), ("windy", "刮风"), ("foggy", "有雾")]

# (country, Chinese, capital, Chinese, continent, Chinese)
COUNTRIES = [
    ("France", "法国", "Paris", "巴黎", "Europe", "欧洲"), ("Germany", "德国", "Berlin", "柏林", "Europe", "欧洲"),
    ("Italy", "意大利", "Rome", "罗马", "Europe", "欧洲"), ("Spain", "西班牙", "Madrid", "马德里", "Europe", "欧洲"),
    ("Portugal", "葡萄牙", "Lisbon", "里斯本", "Europe", "欧洲"), ("Austria", "奥地利", "Vienna", "维也纳", "Europe", "欧洲"),
    ("Norway", "挪威", "Oslo", "奥斯陆", "Europe", "欧洲"), ("Sweden", "瑞典", "Stockholm", "斯德哥尔摩", "Europe", "欧洲"),
    ("Finland", "芬兰", "Helsinki", "赫尔辛基", "Europe", "欧洲"), ("Denmark", "丹麦", "Copenhagen", "哥本哈根", "Europe", "欧洲"),
    ("Poland", "波兰", "Warsaw", "华沙", "Europe", "欧洲"), ("Greece", "希腊", "Athens", "雅典", "Europe", "欧洲"),
    ("Hungary", "匈牙利", "Budapest", "布达佩斯", "Europe", "欧洲"), ("Ireland", "爱尔兰", "Dublin", "都柏林", "Europe", "欧洲"),
    ("Russia", "俄罗斯", "Moscow", "莫斯科", "Europe", "欧洲"), ("the United Kingdom", "英国", "London", "伦敦", "Europe", "欧洲"),
    ("China", "中国", "Beijing", "北京", "Asia", "亚洲"), ("Japan", "日本", "Tokyo", "东京", "Asia", "亚洲"),
    ("South Korea", "韩国", "Seoul", "首尔", "Asia", "亚洲"), ("Thailand", "泰国", "Bangkok", "曼谷", "Asia", "亚洲"),
    ("Vietnam", "越南", "Hanoi", "河内", "Asia", "亚洲"), ("India", "印度", "New Delhi", "新德里", "Asia", "亚洲"),
    ("Nepal", "尼泊尔", "Kathmandu", "加德满都", "Asia", "亚洲"), ("Mongolia", "蒙古", "Ulaanbaatar", "乌兰巴托", "Asia", "亚洲"),
    ("Egypt", "埃及", "Cairo", "开罗", "Africa", "非洲"), ("Kenya", "肯尼亚", "Nairobi", "内罗毕", "Africa", "非洲"),
    ("Ethiopia", "埃塞俄比亚", "Addis Ababa", "亚的斯亚贝巴", "Africa", "非洲"), ("Morocco", "摩洛哥", "Rabat", "拉巴特", "Africa", "非洲"),
    ("Canada", "加拿大", "Ottawa", "渥太华", "North America", "北美洲"), ("Mexico", "墨西哥", "Mexico City", "墨西哥城", "North America", "北美洲"),
    ("Cuba", "古巴", "Havana", "哈瓦那", "North America", "北美洲"), ("the United States", "美国", "Washington", "华盛顿", "North America", "北美洲"),
    ("Brazil", "巴西", "Brasilia", "巴西利亚", "South America", "南美洲"), ("Argentina", "阿根廷", "Buenos Aires", "布宜诺斯艾利斯", "South America", "南美洲"),
    ("Chile", "智利", "Santiago", "圣地亚哥", "South America", "南美洲"), ("Peru", "秘鲁", "Lima", "利马", "South America", "南美洲"),
    ("Australia", "澳大利亚", "Canberra", "堪培拉", "Oceania", "大洋洲"), ("New Zealand", "新西兰", "Wellington", "惠灵顿", "Oceania", "大洋洲"),
]

# (word, opposite) in each language; each pair is asked both ways.
OPPOSITES_EN = [
    ("big", "small"), ("hot", "cold"), ("tall", "short"), ("fast", "slow"), ("old", "young"), ("open", "closed"), ("up", "down"),
    ("left", "right"), ("day", "night"), ("happy", "sad"), ("rich", "poor"), ("early", "late"), ("full", "empty"), ("hard", "soft"),
    ("light", "dark"), ("loud", "quiet"), ("near", "far"), ("strong", "weak"), ("wet", "dry"), ("true", "false"), ("love", "hate"),
    ("begin", "end"), ("buy", "sell"), ("win", "lose"), ("clean", "dirty"), ("thick", "thin"), ("high", "low"), ("inside", "outside"),
]
OPPOSITES_ZH = [
    ("大", "小"), ("热", "冷"), ("高", "矮"), ("快", "慢"), ("老", "年轻"), ("开", "关"), ("上", "下"), ("左", "右"), ("白天", "黑夜"),
    ("高兴", "难过"), ("富", "穷"), ("早", "晚"), ("满", "空"), ("硬", "软"), ("亮", "暗"), ("近", "远"), ("强", "弱"), ("湿", "干"),
    ("真", "假"), ("爱", "恨"), ("开始", "结束"), ("买", "卖"), ("赢", "输"), ("干净", "脏"), ("厚", "薄"), ("里面", "外面"), ("前", "后"), ("多", "少"),
]

DAYS = [
    ("Monday", "星期一"), ("Tuesday", "星期二"), ("Wednesday", "星期三"), ("Thursday", "星期四"), ("Friday", "星期五"),
    ("Saturday", "星期六"), ("Sunday", "星期日"),
]
MONTHS = (
    "January February March April May June July August September October November December".split()
)

# (animal, Chinese, legs, sound, Chinese sound)
ANIMALS = [
    ("cat", "猫", 4, "meow", "喵"), ("dog", "狗", 4, "woof", "汪"), ("cow", "牛", 4, "moo", "哞"), ("sheep", "羊", 4, "baa", "咩"),
    ("duck", "鸭子", 2, "quack", "嘎"), ("frog", "青蛙", 4, "ribbit", "呱"), ("bee", "蜜蜂", 6, "buzz", "嗡"), ("bird", "小鸟", 2, "tweet", "啾"),
]

# (thing, Chinese, colour, Chinese)
THING_COLOURS = [
    ("the sky", "天空", "blue", "蓝色"), ("grass", "草", "green", "绿色"), ("snow", "雪", "white", "白色"), ("the sun", "太阳", "yellow", "黄色"),
    ("blood", "血", "red", "红色"), ("coal", "煤", "black", "黑色"), ("milk", "牛奶", "white", "白色"), ("a ripe banana", "熟的香蕉", "yellow", "黄色"),
    ("a tree leaf", "树叶", "green", "绿色"), ("the sea", "大海", "blue", "蓝色"),
]

# Plain words for copying and sorting.
WORDS = (
    "apple anchor ant arrow autumn baby basket beach bell berry bottle branch bread brick butter button candle carpet castle cherry "
    "circle clock coffee copper corner cotton daisy desert dinner dragon drum eagle earth engine evening eye fabric falcon farm "
    "feather field finger fire flag forest fruit garlic gate ghost giant glass globe gold grape guitar hammer harbor heart hill honey "
    "ice ink iron island ivory jacket jar jelly jewel jungle kettle king kite kitten ladder lake lamp lemon lily lion magnet maple "
    "marble meadow melon mirror moon nail needle nest noon north nut oak ocean olive onion otter oven owl paint palace paper pearl "
    "pepper piano pillow planet quail queen quilt quiz rain ribbon ring rocket roof rope saddle salt sand shadow shell silver smoke "
    "soap spoon star storm sugar table tail tent thunder tiger torch tower train turtle uncle unicorn valley velvet village violin "
    "voice wagon wall water wheel whistle wind winter wolf yard yarn yogurt zebra zero"
).split()
ZH_WORDS = (
    "太阳 月亮 星星 天空 大地 海洋 森林 沙漠 河流 湖泊 山峰 草原 春天 夏天 秋天 冬天 早晨 中午 傍晚 夜晚 昨天 现在 将来 红茶 绿茶 豆浆 馒头 包子 "
    "米粥 西瓜 葡萄 草莓 白菜 萝卜 黄瓜 南瓜 蘑菇 花生 书包 课本 黑板 粉笔 尺子 橡皮 教室 操场 同学 朋友 父亲 母亲 哥哥 妹妹 爷爷 奶奶 医院 商店 "
    "超市 银行 邮局 车站 火车 地铁 飞机 轮船 卡车 电视 冰箱 空调 台灯 沙发 窗帘 镜子 毛巾 牙刷 梳子 剪刀 锤子 钉子 木头 石头 金子 银子 铜钱 铁锅 "
    "老虎 狮子 大象 熊猫 孔雀 蝴蝶 蜻蜓 蚂蚁 鲸鱼 海豚 乌龟 松鼠 音乐 舞蹈 绘画 书法 足球 篮球 排球 象棋 诗歌 故事 新闻 历史 地理 数学 语文 科学"
).split()
