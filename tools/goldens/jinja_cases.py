"""Template snippets for make_jinja_goldens.py: hand-written ones for every construct of the language, and a generator
of random ones from a grammar. They are rendered with CONTEXTS."""

import random

CONTEXTS = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "  Hi, 世界! \n"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call00001", "type": "function",
                 "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "units": ["C", "F"]}}}]},
            {"role": "tool", "content": "{\"temp\": 21.5}", "tool_call_id": "call00001"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\n21.5 °C"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "get_weather", "description": "Weather \"now\" & later",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                           "required": ["city"]}}}],
        "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "documents": None,
        "n": 7, "k": -3, "z": 0, "f": 2.5, "g": -0.125, "big": 123456789012, "t": True, "u": False, "nothing": None,
        "s": "Hello World", "empty": "", "uni": "naïve 你好 😀 ß", "quote": "it's \"x\"\n\t\\", "html": "<b>1 & 2</b>",
        "numtext": " 42 ", "floattext": "-1.5e3", "lines": "one\ntwo\r\n\n  three\n", "csv": "a,b,,c",
        "nums": [3, 1, 2], "mixed": [1, "a", None, True, 2.5, [1, 2], {"k": "v"}], "words": ["pear", "Apple", "fig", "apple"],
        "nested": [[1, [2, 3]], [], [4]], "dict": {"b": 2, "a": 1, "C": 3}, "emptylist": [], "emptydict": {},
        "people": [{"name": "Ann", "age": 31, "city": {"name": "Oslo"}}, {"name": "bob", "age": 25, "city": {"name": "Bern"}},
                   {"name": "Cem", "age": 31, "city": {"name": "Oslo"}}, {"name": "dee", "age": None}],
        "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}, {"v": 5, "kids": []}],
        "items": {"keys": 1, "items": [1, 2], "x": {"y": {"z": "deep"}}},
    },
    {"messages": [], "n": 0, "s": "", "nums": [], "dict": {}, "words": [], "f": 1e22, "g": 1e-7, "uni": "É", "t": False},
]

# One line each; every construct at least once. Errors are cases too.
SNIPPETS = r"""
{{ 1 }} {{ -1 }} {{ 1.0 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5_0 }}
{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ 'a' "b" 'c' }}
{{ 'it\'s' }} {{ "a\tb\\n\x41\u00e9\101\0" }} {{ '\q \é' }} {{ "line\
end" }}
{{ [1, 'a', none, true, 1.5, [], {}, (), (1,), {'a': [1]}] }}
{{ {'a': 1, 2: 'b', none: 3, true: 4, 1.5: 5, (1, 2): 6} }} {{ {'x': 1, 'x': 2} }} {{ {1: 'a', 1.0: 'b', true: 'c'} }}
{{ {[1]: 2} }}
{{ (1, 2) }} {{ (1) }} {{ () }} {{ 1, 2 }} {{ (1, 2,) }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 / 0 }}
{{ 0 ** -1 }}
{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ (1,) * 2 }} {{ 'a' * -1 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ true + true }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + (2,) }}
{{ none + 1 }}
{{ 'a' - 'b' }}
{{ {} + {} }}
{{ 1 ~ 'a' ~ none ~ 1.5 ~ [1] ~ nope }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) == [1] }} {{ 1 != '1' }} {{ none == none }} {{ {} == {} }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 1 in [1, 2] }} {{ 'a' in 'cat' }} {{ 'a' not in {'a': 1} }} {{ 1 in (1,) }} {{ 'x' in nope }} {{ 2 in range(5) }} {{ 1 not in nums }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ [] in {} }}
{{ 1 and 0 }} {{ 0 or 'x' }} {{ not 1 }} {{ not not '' }} {{ none or [] }} {{ '' and nope.x }} {{ 1 or nope.x.y }} {{ not a and b or c }}
{{ 'y' if t else 'n' }} {{ 'y' if u }} {{ ('y' if u) is defined }} {{ 1 if t else 2 if u else 3 }} {{ 'a' if n > 5 and f }}
{{ nope }} {{ nope is defined }} {{ nope|default('d') }} {{ nope == nada }} {{ nope|length }} {{ nope|list }} {{ nope ~ 'x' }} {{ not nope }} {{ nope|upper }}
{{ nope.x }}
{{ nope['x'] }}
{{ nope() }}
{{ nope + 1 }}
{{ nope < 1 }}
{{ -nope }}
{{ nope[1:] }}
{{ nope|int }}
{{ nope|tojson }}
{{ s.nope }} {{ s.nope is undefined }} {{ dict.nope }} {{ dict['nope'] }} {{ nums[99] }} {{ nums['a'] }} {{ none.x }} {{ n.x }}
{{ dict.nope.x }}
{{ nums[99].x }}
{{ none.x.y }}
{{ dict.a }} {{ dict['b'] }} {{ items.x.y.z }} {{ items.items }} {{ items['items'] }} {{ items.keys is callable }} {{ nums.0 }} {{ nested.0.1.1 }} {{ nums[-1] }} {{ s[0] }} {{ s[-1] }} {{ uni[6] }} {{ uni[-3] }}
{{ s[1:4] }} {{ s[::-1] }} {{ s[:-3] }} {{ s[::2] }} {{ s[8:2:-2] }} {{ uni[2:8] }} {{ uni[::-1] }} {{ nums[1:] }} {{ nums[::-1] }} {{ nums[5:] }} {{ nums[-2:] }} {{ (1,2,3)[1:] }} {{ range(10)[2:8:3]|list }} {{ s[none:2] }} {{ s[100:] }}
{{ s[::0] }}
{{ dict[1:2] }}
{{ n[1:2] }}
{{ s['a':] }}
{{ nums[true] }} {{ dict[[]] }} {{ nums[1.0] }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ uni.upper() }} {{ uni.title() }} {{ 'ÀÉ'.lower() }} {{ 'ΑΣ'.lower() }} {{ 'ﬁ'.upper() }}
{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\u3000x\u00a0'.strip() }}|{{ 'abcab'.lstrip('ba') }}|{{ 'äxä'.strip('ä') }}
{{ csv.split(',') }} {{ csv.split(',', 1) }} {{ csv.rsplit(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b'.split('--') }} {{ s.split(sep='o', maxsplit=1) }}
{{ s.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\x0bb\x1cc\u2028d'.splitlines() }}
{{ s.startswith('He') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.startswith('l', 2) }} {{ s.endswith('o', 0, 5) }} {{ ''.startswith('') }} {{ s.startswith('', 99) }}
{{ s.startswith(1) }}
{{ s.find('o') }} {{ s.find('o', 5) }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ s.count('') }} {{ uni.find('好') }} {{ uni.index('😀') }} {{ uni.count('你') }} {{ s.find('', 99) }} {{ s.find('o', -5) }}
{{ s.index('zz') }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ s.replace('x', 'y') }} {{ ''.replace('', 'x') }}
{{ s.replace('l', 'L', count=1) }}
{{ ','.join(words) }} {{ ''.join([]) }} {{ ', '.join({'a': 1, 'b': 2}) }} {{ '-'.join('abc') }}
{{ ','.join([1, 2]) }}
{{ 'ab'.center(7) }}|{{ 'ab'.center(7, '*') }}|{{ 'abc'.center(6, '*') }}|{{ 'ab'.ljust(5, '.') }}|{{ 'ab'.rjust(5) }}|{{ '-5'.zfill(5) }}|{{ 'x'.zfill(3) }}|{{ 'a\tb'.expandtabs(4) }}|{{ '你'.center(4, '好') }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ '²'.isdigit() }} {{ '½'.isnumeric() }} {{ '一'.isnumeric() }} {{ ' '.isspace() }} {{ 'Ab Cd'.istitle() }} {{ 'a_1'.isidentifier() }} {{ ''.isalpha() }} {{ 'é'.isascii() }} {{ 'a\n'.isprintable() }} {{ '٣'.isdecimal() }} {{ 'ABC1'.isupper() }} {{ 'abc'.islower() }}
{{ s.removeprefix('Hello ') }} {{ s.removesuffix('World') }} {{ s.partition(' ') }} {{ s.rpartition('o') }} {{ s.partition('zz') }} {{ s.rpartition('zz') }} {{ 'Straße'.casefold() }}
{{ '{} {}'.format(1, 'a') }} {{ '{1} {0}'.format(1, 2) }} {{ '{a} {b[x]} {c.d}'.format(a=1, b={'x': 2}, c={'d': 3}) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }} {{ '{:05d} {:+d} {:,} {:x} {:#b} {:e} {:.2f} {:%} {:g}'.format(42, 7, 1234567, 255, 5, 1234.5, 3.14159, 0.25, 0.0001) }} {{ '{!r} {!s}'.format('a', 'b') }} {{ '{{}}'.format() }} {{ '{:{}}'.format('x', 4) }}
{{ '{}'.format() }}
{{ '{} {0}'.format(1) }}
{{ '{:d}'.format('x') }}
{{ '{'.format() }}
{{ '{x}'.format(y=1) }}
{{ '%s %d %5.2f %r %x %% %05d %-5s| %+d %c %e %g' % ('a', 5, 3.14159, 'q', 255, 42, 'l', 3, 'z', 12345.678, 0.5) }} {{ '%(a)s-%(b)d' % {'a': 1, 'b': 2} }} {{ '%s' % [1] }} {{ '%s' % (1,) }} {{ '%5s|%.2s' % ('ab', 'xyz') }} {{ '%i %u %o %X' % (1, 2, 8, 255) }} {{ 'abc' % {} }} {{ '%*d' % (5, 3) }} {{ '%s' % nope }}
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ '%d' % 'a' }}
{{ 'abc' % 1 }}
{{ '%z' % 1 }}
{{ dict.items() }} {{ dict.keys() }} {{ dict.values() }} {{ dict.items()|list }} {{ dict.get('a') }} {{ dict.get('q') }} {{ dict.get('q', 5) }} {{ dict.keys()|list }} {{ dict.copy() }} {{ dict|length }} {{ dict.items()|length }} {{ 'a' in dict.keys() }} {{ 3 in dict.values() }} {{ ('a', 1) in dict.items() }}
{{ dict.update({'x': 1}) }}
{{ dict.pop('a') }}
{{ nums.append(4) }}
{{ dict.setdefault('a', 1) }}
{% set _ = nums.append(1) %}
{{ dict.pop is defined }} {{ nums.append }} {{ nums.sort is callable }}
{{ nums.index(2) }} {{ nums.count(1) }} {{ nums.copy() }} {{ (1, 1).count(1) }}
{{ nums.index(9) }}
{{ n.real }} {{ n.bit_length() }} {{ f.is_integer() }} {{ n.numerator }}
{{ n.__class__ }} {{ s.__class__ is defined }} {{ dict.__class__ }}
{{ n.__class__.__mro__ }}
{{ nums|abs }}
{{ -5|abs }} {{ (-5)|abs }} {{ g|abs }} {{ true|abs }}
{{ html|e }} {{ html|escape }} {{ html|safe }} {{ html|e|e }} {{ html|forceescape }} {{ (html|e)|forceescape }} {{ html|safe + '<' }} {{ '<' + html|safe }} {{ html|e ~ '<' }} {{ [html|e] }} {{ html|striptags }} {{ (html|safe).upper() }} {{ (html|safe) % 1 if false else '' }} {{ ('%s'|safe) % '<' }} {{ ('{}'|safe).format('<') }} {{ ('<'|safe).join(['<', '>']) }} {{ 'a &amp; b <i>c</i>'|striptags }} {{ (html|safe)|replace('<', '[') }} {{ (html|safe) * 2 }} {{ (html|safe)[0] }} {{ html|e is escaped }}
{{ nums|batch(2)|list }} {{ nums|batch(2, 'x')|list }} {{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 'x')|list }} {{ []|batch(2)|list }}
{{ range(7)|slice(0)|list }}
{{ s|capitalize }} {{ 'ab'|center(6) }}| {{ s|length }} {{ nums|count }} {{ uni|length }} {{ words|first }} {{ words|last }} {{ []|first }} {{ []|last }} {{ ''|first }} {{ dict|first }} {{ dict|last }} {{ s|first }} {{ uni|last }}
{{ 5|length }}
{{ none|length }}
{{ true|first }}
{{ nope|default }} {{ nope|d(1) }} {{ ''|default('x') }} {{ ''|default('x', true) }} {{ none|default('x') }} {{ none|d('x', boolean=true) }} {{ 0|default(default_value='q', boolean=true) }}
{{ dict|dictsort }} {{ dict|dictsort(true) }} {{ dict|dictsort(false, 'value') }} {{ dict|dictsort(reverse=true) }} {{ dict|dictsort(by='value', reverse=true) }}
{{ dict|dictsort(by='x') }}
{{ '3.7'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ floattext|float }} {{ '1_0.5'|float }} {{ ' inf '|float }} {{ none|float }} {{ 3|float }} {{ 'nan'|float }} {{ '1e400'|float }} {{ '.5'|float }} {{ '5.'|float }}
{{ numtext|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '0x1F'|int(base=16) }} {{ '1f'|int(0, 16) }} {{ '0b11'|int(base=0) }} {{ '1_000'|int }} {{ '-5'|int }} {{ none|int }} {{ [1]|int }} {{ 3.99|int }} {{ -3.99|int }} {{ true|int }} {{ 'inf'|int }} {{ '1e3'|int }} {{ ''|int }} {{ '٣'|int if false else 0 }}
{{ '%s-%s'|format('a', 1) }} {{ '%(x)s'|format(x=5) }}
{{ '%s'|format(1, x=2) }}
{% for g in people|groupby('age') %}{{ 1 }}{% endfor %}
{% for k, v in people[:3]|groupby('age') %}[{{ k }}:{{ v|map(attribute='name')|join(',') }}]{% endfor %} {% for g in people[:3]|groupby('city.name') %}{{ g.grouper }}={{ g.list|length }};{% endfor %} {{ ['b', 'A', 'a']|groupby(0) if false }} {% for k, v in [{'x': 'a'}, {'x': 'A'}, {}]|groupby('x', default='z') %}{{ k }}{{ v|length }} {% endfor %}
{{ lines|indent }}|{{ lines|indent(2) }}|{{ lines|indent(2, true) }}|{{ lines|indent('> ', blank=true) }}|{{ lines|indent(width=1, first=true, blank=true) }}|{{ ''|indent }}|{{ 'a'|indent(2, true) }}
{{ 5|indent }}
{{ words|join }} {{ words|join(', ') }} {{ nums|join('-') }} {{ mixed|join('|') }} {{ people|join(', ', attribute='name') }} {{ people|join(d='+', attribute='age') }} {{ 'abc'|join('.') }} {{ dict|join(',') }} {{ nums|join(none) }} {{ nums|join(1) }}
{{ 5|join }}
{{ 'abc'|list }} {{ dict|list }} {{ range(3)|list }} {{ (1, 2)|list }} {{ uni|list }}
{{ none|list }}
{{ 'ABC'|lower }} {{ 5|lower }} {{ none|lower }} {{ nums|upper }} {{ true|upper }}
{{ dict|items|list }} {{ nope|items|list }} {% for a, b in dict|items %}{{ a }}{{ b }}{% endfor %}
{{ nums|items|list }}
{{ words|map('upper')|list }} {{ words|map('replace', 'p', 'P')|list }} {{ people|map(attribute='name')|list }} {{ people|map(attribute='city.name', default='?')|list }} {{ nums|map('string')|join }} {{ nope|map('upper')|list }} {{ []|map('nosuch')|list }} {{ ['1', '2']|map('int')|sum }} {{ nested|map('length')|list }} {{ words|map('upper')|first }} {{ 'abc'|map('upper')|join }} {{ [[3, 1], [2]]|map('sort')|list }} {{ people|map(attribute='age')|select|list }}
{{ words|map('nosuch')|list }}
{{ words|map|list }}
{{ words|map(attribute='a', foo=1)|list }}
{{ words|map('upper')|length }}
{{ words|map('upper')[0] if false else 1 }}
{{ nums|max }} {{ nums|min }} {{ words|max }} {{ words|min }} {{ words|max(true) }} {{ words|min(case_sensitive=true) }} {{ people[:3]|max(attribute='age') }} {{ []|max }} {{ []|min is defined }} {{ 'hello'|max }}
{{ mixed|max }}
{{ nums|reject('odd')|list }} {{ nums|reject('>', 1)|list }} {{ nums|select('odd')|list }} {{ nums|select('divisibleby', 3)|list }} {{ mixed|select|list }} {{ mixed|reject|list }} {{ mixed|select('string')|list }} {{ nums|select('in', [1, 2])|list }} {{ words|select('equalto', 'fig')|list }} {{ mixed|reject('none')|list }}
{{ people|selectattr('age')|map(attribute='name')|list }} {{ people|selectattr('age', 'equalto', 31)|map(attribute='name')|list }} {{ people|rejectattr('age', 'none')|list|length }} {{ people|rejectattr('age')|map(attribute='name')|join }} {{ people|selectattr('city', 'defined')|list|length }} {{ people|selectattr('city.name', '==', 'Oslo')|list|length }} {{ messages|selectattr('role', 'in', ['user', 'tool'])|list|length }} {{ people|selectattr('nope', 'undefined')|list|length }}
{{ nums|select('nosuch')|list }}
{{ people|selectattr|list }}
{{ s|replace('o', '0') }} {{ s|replace('o', '0', 1) }} {{ 555|replace(5, 6) }} {{ s|replace('o', '0', count=1) }} {{ none|replace('N', 'n') }}
{{ s|reverse }} {{ nums|reverse|list }} {{ dict|reverse|list }} {{ uni|reverse }} {{ range(4)|reverse|list }} {{ nums|map('string')|reverse }} {{ (1, 2)|reverse|list }} {{ dict.items()|reverse|list }}
{{ 5|reverse }}
{{ 2.5|round }} {{ 3.5|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 42|round }} {{ 1234|round(-2) }} {{ 1250|round(-2) }} {{ 1234.5|round(-2) }} {{ 2.675|round(2) }} {{ -2.5|round }} {{ 5|round(method='ceil') }} {{ true|round }} {{ 0.1|round(20) }} {{ 2.5|round(0, 'floor') }} {{ 7|round(-1, 'ceil') }}
{{ 2.5|round(method='x') }}
{{ 'a'|round }}
{{ nums|sort }} {{ nums|sort(true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ people[:3]|sort(attribute='age')|map(attribute='name')|list }} {{ people[:3]|sort(attribute='age,name', reverse=true)|map(attribute='name')|list }} {{ people[:3]|sort(attribute='city.name')|map(attribute='name')|list }} {{ dict|sort }} {{ 'hello'|sort }} {{ [[2, 1], [1, 2]]|sort(attribute=0) }} {{ [true, false, 2]|sort }}
{{ mixed|sort }}
{{ [1, 'a']|sort }}
{{ people|sort(attribute='age') }}
{{ 5|string }} {{ none|string }} {{ [1]|string ~ 'x' }} {{ nums|string|length }}
{{ nums|sum }} {{ [1.5, 2]|sum }} {{ people[:3]|sum(attribute='age') }} {{ nums|sum(start=10) }} {{ [[1], [2]]|sum(start=[]) }} {{ []|sum }}
{{ words|sum }}
{{ 'hello world-foo (bar) [baz] it\'s'|title }} {{ 'HELLO'|title }} {{ uni|title }}
{{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 5|trim }} {{ '\n a \n'|trim }}|
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'foo bar baz qux'|truncate(9, end='…') }} {{ s|truncate(5, leeway=0) }}
{{ s|truncate(1) }}
{{ ['a', 'A', 'b', 1, 1.0, true]|unique|list }} {{ words|unique|list }} {{ words|unique(true)|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }}
{{ [[1]]|unique|list }}
{{ 'a b/c?d=é&'|urlencode }} {{ {'a': 1, 'b c': 'd/e'}|urlencode }} {{ [('x', 1), ('y', '&')]|urlencode }} {{ 5|urlencode }}
{{ s|wordcount }} {{ 'a-b c_d é 你好'|wordcount }} {{ ''|wordcount }}
{{ 'the quick brown fox jumps'|wordwrap(10) }}|{{ 'aaaaaaaaaaaaaaa bb'|wordwrap(5) }}|{{ 'aaaaaaaaaaaaaaa bb'|wordwrap(5, false) }}|{{ 'well-known half-baked'|wordwrap(8) }}|{{ 'a b\n\nc d'|wordwrap(3, wrapstring='/') }}
{{ {'class': 'a b', 'id': none, 'x': '<', 'n': 1}|xmlattr }} {{ {}|xmlattr }} {{ {'a': 1}|xmlattr(false) }}
{{ {'a b': 1}|xmlattr }}
{{ 1000|filesizeformat }} {{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1500000|filesizeformat }} {{ 1536|filesizeformat(true) }} {{ '13000'|filesizeformat }}
{{ mixed|tojson }} {{ dict|tojson }} {{ people[0]|tojson(indent=2) }} {{ [[], {}, [1]]|tojson(indent=4) }} {{ quote|tojson }} {{ uni|tojson }} {{ uni|tojson(true) }} {{ uni|tojson(ensure_ascii=true) }} {{ dict|tojson(sort_keys=true) }} {{ dict|tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }} {{ 1e22|tojson }} {{ '</script>&\'"'|tojson }} {{ '\x7f\x00\x1f'|tojson }} {{ nums|tojson(indent=0) }} {{ nums|tojson(indent='\t') }} {{ 'inf'|float|tojson }} {{ s|e|tojson }} {{ {}|tojson(indent=2) }} {{ dict|tojson(indent=none) }} {{ true|tojson }} {{ none|tojson }}
{{ range(3)|tojson }}
{{ dict.items()|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {1: 2, 'a': 3}|tojson(sort_keys=true) }}
{{ dict|attr('a') }} {{ dict|attr('items') is callable }} {{ dict|attr('nope') is defined }} {{ s|attr('upper')() }}
{{ nums|nosuchfilter }}
{{ 1 if true else nums|nosuchfilter }}
{{ 1 if false else nums|nosuchfilter }}
{% if false %}{{ 1|nosuchfilter }}{% endif %}ok
{% if true %}{{ 1|nosuchfilter }}{% endif %}
{% if false %}{% for x in nums %}{{ 1|nosuchfilter }}{% endfor %}{% endif %}
{% if 1 is nosuchtest %}{% endif %}
{% if false %}{% if 1 is nosuchtest %}{% endif %}{% endif %}ok
{{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is defined }} {{ nope is undefined }} {{ none is none }} {{ true is boolean }} {{ 1 is boolean }} {{ false is false }} {{ 0 is false }} {{ true is true }} {{ 1 is integer }} {{ true is integer }} {{ 1.5 is float }} {{ true is number }} {{ 'a' is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is mapping }} {{ 'a' is sequence }} {{ dict is sequence }} {{ 5 is sequence }} {{ nope is sequence }} {{ nope is iterable }} {{ 'a' is iterable }} {{ 5 is iterable }} {{ dict.items() is sequence }} {{ range(3) is sequence }} {{ none is iterable }}
{{ 'a' is lower }} {{ 'A' is upper }} {{ 'a1' is lower }} {{ '1' is lower }} {{ range is callable }} {{ 5 is callable }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ nums is sameas nums }} {{ 1 is sameas true }} {{ 1 is in [1] }} {{ 'a' is in('abc') }} {{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is lessthan 2 }} {{ 2 is gt 1 }} {{ 2 is greaterthan(1) }} {{ 1 is le 1 }} {{ 1 is ge 2 }} {{ 'upper' is filter }} {{ 'nosuch' is filter }} {{ 'odd' is test }} {{ 'x' is escaped }} {{ 1 is not odd }} {{ not 1 is odd }} {{ 1 is odd and 2 is even }} {{ nope is not defined }} {{ 5 is not none }}
{{ 'a' is odd }}
{{ 1 is lt 'a' }}
{{ 1.5 is odd }} {{ -1 is odd }} {{ -3 is even }} {{ 1 is divisibleby 0 if false else 1 }}
{{ 1 is odd is even }}
{{ range(3) }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(3)|length }} {{ range(3)[1] }} {{ range(3) == range(0, 3) }} {{ range(10, step=2) if false }}
{{ range(100001) }}
{{ range(1, 2, 0) }}
{{ range('a') }}
{{ range() }}
{{ dict(a=1, b=2) if dict is callable else 'shadowed' }}
{% set ns = namespace(a=1, b='x') %}{{ ns.a }}{{ ns.b }}{% set ns.a = 5 %}{{ ns.a }} {{ ns['a'] }} {{ ns.q }} {{ ns.q is defined }} {{ ns }}
{% set ns = namespace({'a': 1}) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}
{% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x + ns.y }}
{% set ns = namespace(_a=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set nums.x = 1 %}
{% set nope.x = 1 %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}
{{ cycler() }}
{% set j = joiner() %}{% for x in nums %}{{ j() }}{{ x }}{% endfor %}{% set j = joiner('|') %}{{ j() }}{{ j() }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y %H:%M:%S') }} {{ strftime_now("%A, %B %d") }} {{ strftime_now('%j %y %I%p') }}
{{ raise_exception('boom') }}
{% if t %}{{ raise_exception('a ' ~ n) }}{% endif %}
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if u %}a{% elif t %}b{% endif %}{% if u %}x{% endif %}
{% if n %}{% if k %}x{% else %}y{% endif %}{% endif %}
{% for x in nums %}{{ x }}{% endfor %} {% for x in [] %}a{% else %}none{% endfor %} {% for x in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %} {% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %} {% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %} {% for x in nums %}{{ loop }}{% endfor %} {% for x in nums %}{{ loop|length }}{% endfor %}
{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %} {% for k in dict %}{{ k }}{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for c in 'añb' %}{{ c }}.{% endfor %}
{% for a, b in nums %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, b in ['xy', 'zw'] %}{{ a }}{{ b }}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for x in nope %}a{% else %}empty{% endfor %}
{% for x in range(10) if x is odd %}{{ x }}{{ loop.index }}{% if loop.last %}!{% endif %}{% endfor %} {% for x in nums if x > 5 %}a{% else %}none{% endfor %} {% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %} {% for x in range(6) if x % 2 %}{{ loop.length }}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in range(9) if not ns.stop %}{{ x }}{% if x == 3 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in range(9) if not ns.stop %}{{ loop.last }}{% if x == 3 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% for x in tree recursive %}[{{ x.v }}{{ loop.depth }}{% if x.kids %}{{ loop(x.kids) }}{% endif %}]{% endfor %}
{% for x in nums %}{{ loop(nums) }}{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in nums %}{% break %}{% else %}E{% endfor %}|{% for x in nums %}{% continue %}{% else %}E{% endfor %}|{% for x in nums %}{% if x == 1 %}{% break %}{% endif %}{% else %}E{% endfor %}
{% break %}
{% for x in nums %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in nums %}{% set y %}a{% break %}{% endset %}{% endfor %}ok
{% for x in nums %}{% for y in nums %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for x in nums %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ y }}{% endfor %}{% endfor %}
{% for loop in nums %}{{ loop }}{% endfor %}
{% for x in nums %}{% set loop = 1 %}{% endfor %}
{% for x in nums %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}
{% set a = 1 %}{% for i in nums %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}
{% for i in nums %}{{ a is defined }}{% set a = i %}{% endfor %}{{ a is defined }}
{% set a = 1 %}{% if t %}{% set a = 2 %}{% endif %}{{ a }}{% if u %}{% set b = 1 %}{% endif %}{{ b is defined }}{% if u %}{% set n = 99 %}{% endif %}{{ n }}
{% for i in nums %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}
{{ n }}{% for i in [1] %}{{ n }}{% set n = n + 1 %}{{ n }}{% endfor %}{{ n }}
{% for i in [1] %}{{ s }}{% if u %}{% set s = 1 %}{% endif %}{{ s }}{% endfor %}
{% for i in [1] %}{% if u %}{% set q = 1 %}{% elif t %}{% set q = 2 %}{% else %}{% set q = 3 %}{% endif %}{{ q }}{% endfor %}{{ q }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = nums[:2] %}{{ c }}{{ d }}{% set e = 1, 2 %}{{ e }}
{% set a, b = 1 %}
{% set a, b = [1] %}
{% set x %}a{{ n }}b{% endset %}{{ x }}|{% set y | upper %}abc{% endset %}{{ y }}|{% set z | replace('a', 'b') | upper %}aa{% endset %}{{ z }}
{% set x %}{% set inner = 1 %}{{ inner }}{% endset %}{{ x }}{{ inner is defined }}
{% set true = 1 %}
{% set 1 = 2 %}
{% set a.b.c = 1 %}
{% macro m(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}
{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}{{ m(none) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}
{% macro m(a) %}{{ a }}|{{ varargs }}|{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }} {{ m.name }} {{ m.arguments }} {{ m.catch_kwargs }} {{ m.catch_varargs }} {{ m.caller }} {{ m }}
{% macro m() %}{{ n }}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}
{% macro m() %}{{ late }}{% endmacro %}{% set late = 'L' %}{{ m() }}
{% macro m(x=n) %}{{ x }}{% endmacro %}{% set n = 2 %}{{ m() }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}
{% macro f(i) %}{% if i > 0 %}{{ i }}{{ f(i - 1) }}{% endif %}{% endmacro %}{{ f(4) }}
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer('a') }}{{ outer('b') }}
{% for x in nums %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}body{{ n }}{% endcall %}
{% macro m(l) %}{% for x in l %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(item, i) m(nums) %}<{{ item }}{{ i }}>{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% call s %}x{% endcall %}
{% call s.upper() %}x{% endcall %}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(5, *[6]) }}{{ m(*'xy') }}
{% macro m(a=1, b) %}{% endmacro %}
{{ m(1, a=2, 3) }}
{{ dict.get(**5) }}
{% macro m(caller) %}{{ caller }}{% endmacro %}
{% macro m(caller=none) %}{{ caller is none }}{% endmacro %}{{ m() }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b')|upper %}aXa{% endfilter %} {% filter trim %}  {% set q = 1 %}{{ q }}  {% endfilter %}{{ q is defined }}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }} {% with %}{% set n = 1 %}{{ n }}{% endwith %}{{ n }} {% with n = n + 1 %}{{ n }}{% with n = n * 2 %}{{ n }}{% endwith %}{% endwith %}
{% with a = 1, b = a %}{{ b is defined }}{% endwith %}
{% raw %}{{ not }} {% this %} {# nor #}{% endraw %}x {% raw -%}  a  {%- endraw %} b {%- raw %} c {% endraw -%} d
{# comment #}a{#- c -#} b {#+ c +#} c{# multi
line #}d
{% generation %}a{{ n }}{% set g2 = 1 %}{{ g2 }}{% endgeneration %}{{ g2 is defined }} {% for x in nums %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% print 1, 'a' %}{% print n %}
{% block a %}x{{ n }}{% endblock %}{% set v = 5 %}{% block b %}{{ v }}{% endblock b %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% autoescape false %}{{ html }}{% endautoescape %}
{% do nums %}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% unknown %}
{% endif %}
{% if n %}
{% for x in nums %}
{% if n %}{% endfor %}
{% macro %}
{{ 
{{ n
{{ n }
{% if
{{ n }} }} %} #}
{{ (1 }}
{{ 1) }}
{{ [1} }}
{{ {'a': {'b': {'c': 1}}}.a.b.c }} {{ {'a': 1}['a'] }} {{ [1, 2][0] }} {{ 'abc'[1] }} {{ (1, 2)[1] }} {{ -nums[0] }} {{ 'a'.upper() ~ 'b' }}
{{ 'unterminated }}
{{ a b }}
{{ 1 2 }}
{{ . }}
{{ }}
{{ n | }}
{{ n is }}
{{ not }}
{{ n ! }}
{{ n $ }}
{{ 1 + }}
{{ n if }}
{% for %}{% endfor %}
{% for x %}{% endfor %}
{% for x in %}{% endfor %}
{% set %}
{% set x = %}
{# unterminated
{% raw %} unterminated
{{ "a" if n is defined else "b" }} {{ n is defined and s is string }} {{ (n, s) is sequence }} {{ not n is none }} {{ n is not none and n }}
a  {%- if t -%}  b  {%- endif -%}  c
a  {%+ if t %}  b  {% endif +%}  c
a{{- ' b ' -}}c {{ n -}}  d  {{- n }}
{{ messages[0].content }}{{ messages[1]['content']|trim }}{{ messages[2].tool_calls[0].function.arguments.city }}{{ messages[-1].content.split('</think>')[-1].lstrip('\n') }}
{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% if m.content is string %}{{ m.content }}{% elif m.tool_calls %}{% for c in m.tool_calls %}{{ c.function|tojson }}{% endfor %}{% endif %}{% endfor %}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|map(attribute='role')|join(',') }} {{ (messages|last).content }} {{ messages[1:]|length }} {{ messages[::-1]|map(attribute='role')|list }} {{ (messages|rejectattr('role', 'equalto', 'system')|list)[0].role }}
{{ tools|tojson(indent=4) }} {{ tools[0].function.parameters.properties|items|list }} {{ tools|length > 0 }}
{{ nums|join(',') if nums else 'none' }} {{ nums and 'y' or 'n' }} {{ nums|length == 3 and 'three' }}
{{ nums[n - 7] }} {{ nums[nums|length - 1] }} {{ dict[words[2][:0] ~ 'a'] }} {{ words[0][0]|upper ~ words[0][1:] }}
{{ '你好'|length }} {{ '你好'[1] }} {{ '😀x'[1:] }} {{ uni|upper }} {{ uni|tojson }} {{ [uni] }} {{ ['\u200b', '\x80', '\xa0', '\U000e0001', '\ufeff'] }}
{{ [0.1, 1e16, 1e15, 123456789.125, 1e-5, 0.0001, -0.0, 1e100, 5e-324, 1.7976931348623157e308] }} {{ 0.1 + 0.2 }} {{ 1e308 * 10 }} {{ 3.0 }} {{ 1e16 }} {{ 10 ** 15 / 7 }}
{{ ['a\'b', 'a"b', 'a\'"b', '\n\r\t\\', '\x00\x7f'] }}
{{ 1.5.real if false else 1 }} {{ 5 .real if false else 2 }}
{{ x.y if x is defined else 'no x' }} {{ (x|default({})).y|default('dy') }} {{ dict.a|default(5) }} {{ nope|default(none) is none }}
{{ loop }} {{ loop is defined }}
{{ caller }} {{ varargs }}
{% set x = [1, 2] %}{% set y = x + [3] %}{{ x }}{{ y }}{% set x = x + [x|length] %}{{ x }}
{% set it = words|map('upper') %}{{ it|join(',') }}|{{ it|join(',') }}|{{ it|list }}
{% set it = words|map('upper') %}{% for a in it %}{{ a }}{% break %}{% endfor %}|{{ it|list }}
{% set it = nums|select('odd') %}{{ it|first }}|{{ it|list }} {% if it %}truthy{% endif %}
{% for x in words|map('upper') %}{{ loop.length }}{{ loop.last }}{{ x }};{% endfor %} {% for x in nums|reverse %}{{ loop.index }}{{ x }}{{ loop.revindex }}{% endfor %}
"""

# Templates of several lines: white space around tags.
BLOCKS = [
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if t %}\n  b\n  {%- endif %}\nc\n\n",
    "a\n  {%+ if t %}\n  b\n  {%+ endif %}\nc",
    "a\n  {% if t -%}\n\n  b\n  {% endif -%}\n\nc",
    "a\n  {{ n }}\n  {{- n }}\n  {{ n -}}\n  b",
    "  {# c #}\n  x {# c #}\n{#- c -#}\n y {# c +#}\n z",
    "{% for x in nums %}\n  {{ x }}\n{% endfor %}\n",
    "{% for x in nums -%}\n  {{ x }}\n{%- endfor %}\n\n",
    "\t{% set a = 1 %}\n\t{{ a }}\t{% set b = 2 %}\t\n{{ b }}\n",
    "x {% if t %} y {% endif %} z\n\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\nq",
    "  {% raw %}  a\n  {% endraw %}\nq",
    "a\r\nb\rc\n{{ '\r\n' }}{% if t %}\r\nd{% endif %}\r\n",
    "{% macro m(a) %}\n  [{{ a }}]\n{% endmacro %}\n{{ m(1) }}\n{{- m(2) }}\n",
    "{% if t %}\n\n\na\n\n{% endif %}\n\n\n",
    "{{ 'a' }}\n{{ 'b' }}\n\n{{ 'c' }}\n\n\n",
    "{% if t %}{% if t %}\n  x{% endif %}\n  {% endif %}\n  y",
    "\u00a0{% if t %}x{% endif %}\n\u3000{%- if t %}y{% endif %}",
    "a\n \n  {%- if t -%}\n \n b \n \n {%- endif -%} \n c",
    "{% set x %}\n  a\n{% endset %}[{{ x }}]\n",
    "{% filter upper %}\n  a\n{% endfilter %}\n b",
    "{%- set a = 1 -%}\n{%- set b = 2 -%}\n{{ a + b }}\n   ",
    "{{ {'a': {'b': 1}}\n  ['a']\n  ['b'] }}\n{{ [\n 1,\n 2,\n] }}",
    "{% if t\n   and n %}\nx\n{% endif %}",
    "{%if t%}a{%endif%}{{n}}{{-n-}}{{+n}}",
    "%} }} #} {",
    "{",
    "{ {n} }{ % if %}",
    "",
    "\n",
    "\n\n",
    "{#",
    "{% raw %}",
    "{%",
]


class Grammar:
    """Random templates: expressions that mostly fit together, statements around them."""

    NAMES = ["n", "k", "z", "f", "g", "t", "u", "nothing", "s", "empty", "uni", "quote", "html", "numtext", "floattext",
             "lines", "csv", "nums", "mixed", "words", "nested", "dict", "emptylist", "emptydict", "people", "items", "nope",
             "messages", "tools", "a", "b", "ns.c", "x"]
    INTS = ["n", "k", "z", "0", "1", "2", "3", "-1", "7", "10", "nums[0]", "(words|length)", "people[0].age", "nums|sum"]
    STRINGS = ["s", "empty", "uni", "quote", "html", "lines", "csv", "'a'", "'l'", "'o'", "''", "' '", "'\\n'", "words[0]",
               "messages[1].content", "people[1].name", "'é😀'", "'Hello %s'", "numtext", "n|string"]
    LISTS = ["nums", "mixed", "words", "nested", "emptylist", "people", "messages", "[1, 2, 3]", "range(4)", "range(4)|list",
             "words|map('upper')|list", "csv.split(',')", "dict.items()|list", "(1, 2)", "'abc'|list", "people|map(attribute='name')|list"]
    DICTS = ["dict", "emptydict", "people[0]", "items", "messages[0]", "{'a': n, 'b': s}", "{1: 2, 'x': [1]}", "tools[0].function"]

    STRING_FILTERS = ["upper", "lower", "trim", "title", "capitalize", "length", "list", "reverse", "string", "int", "float",
                      "replace('l', 'L')", "replace('o', '', 1)", "first", "last", "e", "safe", "tojson", "wordcount", "urlencode",
                      "indent(2)", "indent(1, true, true)", "truncate(8)", "truncate(6, true)", "center(12)", "striptags",
                      "default('d')", "default('d', true)", "wordwrap(6)", "sort|join", "unique|join", "join('-')", "format(1)",
                      "batch(2)|list", "forceescape", "map('upper')|join", "select('in', 'aeiou')|list", "tojson(ensure_ascii=true)"]
    LIST_FILTERS = ["length", "first", "last", "join", "join(', ')", "reverse|list", "sort", "sort(reverse=true)", "sum", "max",
                    "min", "unique|list", "list", "tojson", "tojson(indent=2)", "map('string')|list", "select|list", "reject|list",
                    "select('number')|list", "reject('string')|list", "map('length')|list", "slice(2)|list", "batch(2, 0)|list",
                    "map('upper')|join('/')", "select('defined')|list|length", "selectattr('name', 'defined')|list|length",
                    "map(attribute='name')|list", "map(attribute='name', default='-')|join(',')", "string", "count",
                    "groupby('age')|length", "sort(attribute='name')|length", "rejectattr('role', 'equalto', 'user')|list|length",
                    "map('tojson')|join(' ')", "select('mapping')|list", "select('ge', 2)|list", "sum(attribute='age')", "items|list"]
    DICT_FILTERS = ["length", "list", "items|list", "dictsort", "dictsort(by='value')", "tojson", "tojson(indent=1)", "first",
                    "tojson(sort_keys=true)", "string", "dictsort(reverse=true)|first", "sort", "join(',')", "xmlattr", "urlencode",
                    "tojson(separators=(',', ':'))"]
    INT_FILTERS = ["abs", "string", "float", "round", "round(1)", "int", "default(1)", "tojson", "filesizeformat", "round(0, 'ceil')"]
    TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable",
             "callable", "true", "false", "odd", "even", "divisibleby 2", "lower", "upper", "eq n", "ne 'a'", "in nums", "sameas none",
             "equalto s", "gt 1", "le(2)", "in('Hello')", "escaped", "lt 3"]
    STRING_METHODS = ["upper()", "lower()", "strip()", "split()", "split('l')", "split(' ', 1)", "lstrip('H')", "rstrip()",
                      "startswith('H')", "endswith('d')", "replace('l', '1')", "find('o')", "count('l')", "title()", "isdigit()",
                      "isalpha()", "splitlines()", "partition(' ')", "zfill(8)", "center(9, '*')", "removeprefix('He')", "format(1, 2)",
                      "join(words)", "rsplit('o', 1)", "index('o')", "capitalize()", "islower()", "expandtabs()", "casefold()"]

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def pick(self, *choices):
        return self.rng.choice(choices)

    def integer(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.4:
            return self.rng.choice(self.INTS)
        if r < 0.7:
            return f"({self.integer(depth - 1)} {self.pick('+', '-', '*', '//', '%', '/')} {self.integer(depth - 1)})"
        if r < 0.75:
            return f"({self.integer(depth - 1)} ** {self.pick('2', '3', '-1', '0')})"
        if r < 0.85:
            return f"({self.any(depth - 1)}|length)"
        return f"({self.integer(depth - 1)}|{self.rng.choice(self.INT_FILTERS)})"

    def string(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.3:
            return self.rng.choice(self.STRINGS)
        if r < 0.45:
            return f"({self.string(depth - 1)} {self.pick('+', '~', '~')} {self.pick(self.string(depth - 1), self.any(depth - 1))})"
        if r < 0.6:
            return f"({self.string(depth - 1)}|{self.rng.choice(self.STRING_FILTERS)})"
        if r < 0.75:
            return f"{self.string(depth - 1)}{self.slice(depth - 1)}"
        if r < 0.9:
            return f"{self.string(0)}.{self.rng.choice(self.STRING_METHODS)}"
        return f"('%s|%r' % ({self.any(depth - 1)}, {self.any(depth - 1)}))"

    def list(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.35:
            return self.rng.choice(self.LISTS)
        if r < 0.5:
            return "[" + ", ".join(self.any(depth - 1) for _ in range(self.rng.randrange(4))) + "]"
        if r < 0.6:
            return f"({self.list(depth - 1)} + {self.list(depth - 1)})"
        if r < 0.75:
            return f"{self.list(0)}{self.slice(depth - 1)}"
        return f"({self.list(depth - 1)}|{self.rng.choice(self.LIST_FILTERS)})"

    def dict(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.5:
            return self.rng.choice(self.DICTS)
        if r < 0.8:
            return "{" + ", ".join(f"{self.pick(repr('k'), repr('a'), '1', 's', 'n')}: {self.any(depth - 1)}" for _ in range(self.rng.randrange(3))) + "}"
        return f"({self.dict(depth - 1)}|{self.rng.choice(self.DICT_FILTERS)})"

    def slice(self, depth):
        bound = lambda: self.pick("", "1", "-1", "2", "n", "k", "0", "none", "100")
        return self.pick(f"[{bound()}:{bound()}]", f"[{bound()}:]", f"[:{bound()}]", f"[::{self.pick('-1', '2', '-2')}]",
                         f"[{self.pick('0', '1', '-1', 'n', 'z')}]", f"[{bound()}:{bound()}:{self.pick('1', '2', '-1')}]")

    def condition(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.25:
            return f"{self.any(0)} is {self.pick('', '', 'not ')}{self.rng.choice(self.TESTS)}"
        if r < 0.45:
            return f"{self.integer(depth - 1)} {self.pick('<', '>', '<=', '>=', '==', '!=')} {self.integer(depth - 1)}"
        if r < 0.6:
            return f"{self.any(depth - 1)} {self.pick('==', '!=')} {self.any(depth - 1)}"
        if r < 0.75:
            return f"{self.any(depth - 1)} {self.pick('in', 'not in')} {self.pick(self.list(depth - 1), self.string(depth - 1), self.dict(depth - 1))}"
        if r < 0.85:
            return f"not ({self.condition(depth - 1)})"
        return f"({self.condition(depth - 1)} {self.pick('and', 'or')} {self.pick(self.condition(depth - 1), self.any(depth - 1))})"

    def any(self, depth):
        r = self.rng.random()
        if depth <= 0:
            return self.pick(self.rng.choice(self.NAMES), self.rng.choice(self.NAMES), self.string(0), self.integer(0), self.list(0), self.dict(0))
        if r < 0.2:
            return self.integer(depth - 1)
        if r < 0.45:
            return self.string(depth - 1)
        if r < 0.6:
            return self.list(depth - 1)
        if r < 0.7:
            return self.dict(depth - 1)
        if r < 0.78:
            return f"({self.condition(depth - 1)})"
        if r < 0.86:
            return f"({self.any(depth - 1)} if {self.condition(depth - 1)}{self.pick('', ' else ' + self.any(depth - 1))})"
        if r < 0.93:
            return f"({self.any(depth - 1)} {self.pick('and', 'or')} {self.any(depth - 1)})"
        return f"({self.any(depth - 1)}|default({self.any(0)}))"

    def open(self):
        return self.pick("{%", "{%", "{%-", "{%+")

    def close(self):
        return self.pick("%}", "%}", "%}", "-%}", "+%}")

    def tag(self, body):
        return f"{self.open()} {body} {self.close()}"

    def space(self):
        return self.pick("", "", " ", "\n", "\n  ", "  \n", "\t", "x", " y\n")

    def statement(self, depth, in_loop=False):
        rng = self.rng
        r = rng.random()
        e = rng.randrange(3)
        if depth <= 0 or r < 0.35:
            return f"{self.pick('{{', '{{', '{{-')} {self.any(e)} {self.pick('}}', '}}', '-}}')}"
        body = lambda loop=in_loop: self.body(depth - 1, loop)
        if r < 0.5:
            other = self.pick("", self.tag("else") + body(), self.tag(f"elif {self.condition(1)}") + body())
            return self.tag(f"if {self.condition(e)}") + body() + other + self.tag("endif")
        if r < 0.65:
            target, source = self.pick(("x", self.list(1)), ("x", self.list(1)), ("x, y", "dict.items()"), ("x", self.dict(0)), ("x", self.string(0)))
            test = self.pick("", "", "", f" if {self.condition(1)}")
            info = self.pick("", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.revindex }}", "{{ loop.cycle(1, 2) }}", "{{ loop.previtem }}", "{{ loop.changed(x) }}")
            control = self.pick("", "", "", self.tag(f"if {self.condition(0)}") + self.tag(self.pick("break", "continue")) + self.tag("endif"))
            other = self.pick("", "", self.tag("else") + "E")
            return self.tag(f"for {target} in {source}{test}") + info + body(True) + control + other + self.tag("endfor")
        if r < 0.78:
            return self.tag(self.pick(f"set a = {self.any(e)}", f"set b = {self.any(e)}", f"set ns.c = {self.any(e)}", f"set x = {self.any(e)}",
                                      f"set a, b = {self.any(0)}, {self.any(0)}"))
        if r < 0.83:
            return self.tag("set a") + body() + self.tag("endset") + "{{ a }}"
        if r < 0.88:
            return self.tag("macro m(x, y=1)") + self.body(depth - 1, False) + self.tag("endmacro") + "{{ m(" + self.pick(self.any(0), self.any(0) + ", y=" + self.any(0), "") + ") }}"
        if r < 0.92:
            return self.tag(f"with a = {self.any(0)}, x = {self.any(0)}") + body() + self.tag("endwith")
        if r < 0.95:
            return self.tag(f"filter {self.pick('upper', 'trim', 'replace(1, 2)', 'indent(2)', 'length')}") + body() + self.tag("endfilter")
        if r < 0.97:
            return self.tag("call(q) mm(" + self.any(0) + ")") + "{{ q }}" + self.body(depth - 1, False) + self.tag("endcall")
        return self.pick("{# c #}", "{#- c -#}", "{% raw %} {{ x }} {% endraw %}", self.tag("generation") + self.body(depth - 1, False) + self.tag("endgeneration"))

    def body(self, depth, in_loop=False):
        return "".join(self.space() + self.statement(depth, in_loop) + self.space() for _ in range(self.rng.randrange(1, 3)))

    def template(self):
        prefix = "{% set ns = namespace(c=0) %}{% macro mm(v) %}[{{ caller(v) }}]{% endmacro %}"
        if self.rng.random() < 0.45:
            return "{{ " + self.any(self.rng.randrange(2, 5)) + " }}"
        return prefix + self.body(self.rng.randrange(1, 4))
