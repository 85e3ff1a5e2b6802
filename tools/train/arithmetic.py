"""Written arithmetic, digit by digit, the way a child does it on paper.

Digits are single tokens, so every line below is one table lookup for the model plus copying. In a column line
the two digits after "=" are carry (or borrow) and result digit; the number after the space is the result so far.

    47+85          operands
    74,58          the same, units first, padded to the same length
    7+5+0=12 2     units: carry 1, digit 2
    4+8+1=13 32    tens
    =132           the last carry goes in front
"""


def add(a, b):
    width = max(len(str(a)), len(str(b)))
    ra, rb = str(a)[::-1].ljust(width, "0"), str(b)[::-1].ljust(width, "0")
    lines, carry, result = [f"{a}+{b}", f"{ra},{rb}"], 0, ""
    for x, y in zip(map(int, ra), map(int, rb)):
        column = x + y + carry
        result = str(column % 10) + result
        lines.append(f"{x}+{y}+{carry}={column:02d} {result}")
        carry = column // 10
    return lines + [f"={a + b}"]


def subtract(a, b):
    """Needs a >= b. In a column line the first digit after "=" is the borrow."""
    width = len(str(a))
    ra, rb = str(a)[::-1], str(b)[::-1].ljust(width, "0")
    lines, borrow, result = [f"{a}-{b}", f"{ra},{rb}"], 0, ""
    for x, y in zip(map(int, ra), map(int, rb)):
        column = x - y - borrow
        next_borrow = int(column < 0)
        result = str(column % 10) + result
        lines.append(f"{x}-{y}-{borrow}={next_borrow}{column % 10} {result}")
        borrow = next_borrow
    return lines + [f"={a - b}"]


def multiply_by_digit(a, digit):
    lines, carry, result = [f"{a}*{digit}", str(a)[::-1]], 0, ""
    for x in map(int, str(a)[::-1]):
        column = x * digit + carry
        result = str(column % 10) + result
        lines.append(f"{x}*{digit}+{carry}={column:02d} {result}")
        carry = column // 10
    return lines + [f"={a * digit}"]


def multiply(a, b):
    """Needs b < 100."""
    if b < 10:
        return multiply_by_digit(a, b)
    tens, units = divmod(b, 10)
    return ([f"{a}*{b}"] + multiply_by_digit(a, units) + multiply_by_digit(a, tens)
            + add(a * tens * 10, a * units))


def divide(a, digit):
    """Needs digit to divide a. A line takes the remainder so far and the next digit: 17/7=2,3 means 2, rest 3."""
    lines, rest, quotient = [f"{a}/{digit}"], 0, ""
    for x in map(int, str(a)):
        column = rest * 10 + x
        rest = column % digit
        quotient += str(column // digit)
        lines.append(f"{column:02d}/{digit}={column // digit},{rest} {quotient}")
    return lines + [f"={a // digit}"]


STEPS = {"+": add, "-": subtract, "*": multiply, "/": divide}
VALUE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a // b}


def operands(rng, op, with_think):
    """Without a written calculation only what can be known by heart: two digits, one-digit products."""
    if not with_think:
        if op in "*/":
            a, b = rng.randint(2, 9), rng.randint(2, 9)
            return (a * b, b) if op == "/" else (a, b)
        a, b = rng.randint(1, 99), rng.randint(1, 99)
    elif op == "*":
        return (rng.randint(2, 999), rng.randint(2, 9)) if rng.random() < 0.5 else (rng.randint(10, 999), rng.randint(10, 99))
    elif op == "/":
        digit = rng.randint(2, 9)
        return rng.randint(2, 9999 // digit) * digit, digit
    else:
        a, b = (rng.randint(1, 10 ** rng.randint(1, 5) - 1) for _ in range(2))
    return (max(a, b), min(a, b)) if op == "-" else (a, b)
