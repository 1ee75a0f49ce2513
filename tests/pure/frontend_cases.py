"""Ordinary Python functions: each runs as bytecode and as it stands, and the two must agree.

They use only what means the same on NumPy arrays and Python numbers in both worlds.
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Pair:
    left: object
    right: object

    def total(self):
        return self.left + self.right

    @property
    def swapped(self):
        return Pair(self.right, self.left)


SCALE = 3
FACTORS = [1, 2, {"deep": 5}]


def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
        if steps > 500:
            break
    return steps


def nested_loops(n, m):
    total = 0
    for i in range(n):
        for j in range(i, m):
            if (i + j) % 3 == 0:
                continue
            if j > i + 4:
                break
            total += i * j
        else_value = total
        if else_value > 200:
            return -total
    return total


def swap_in_loop(n):
    a, b, c = 1, 2, 3
    for _ in range(n):
        a, b, c = c, a, b
    return a, b, c


def fibonacci_pair(n):
    a, b = 0, 1
    while n > 0:
        a, b = b, a + b
        n -= 1
    return a


def early_returns(n):
    for i in range(n):
        if i == 3:
            return i * 10
        for j in range(i):
            if j == 7:
                return -1
    return n


def recursive(n):
    if n < 2:
        return n
    return recursive(n - 1) + recursive(n - 2)


def is_even(n):
    if n == 0:
        return True
    return is_odd(n - 1)


def is_odd(n):
    if n == 0:
        return False
    return is_even(n - 1)


def ackermann(m, n):
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


def short_circuit(a, b):
    count = 0
    if a > 0 and 10 // a > 2:
        count += 1
    if a <= 0 or 10 // a < 4:
        count += 10
    if not (a > b) and b != 0:
        count += 100
    both = a > 1 and b > 1
    return count, both


def chained(a, b, c):
    x = 0
    if a < b < c:
        x = 1
    elif a <= b <= c:
        x = 2
    elif a > b > c != 5:
        x = 3
    return x


def conditional_expressions(a, b):
    big = a if a > b else b
    small = b if a > b else a
    return big - small, (1 if a else 2) + (3 if b else 4)


def while_true(n):
    i = 0
    while True:
        i += 2
        if i > n:
            break
        if i == 8:
            i += 5
            continue
    return i


def ranges(a, b):
    down = 0
    for i in range(b, a, -2):
        down = down * 3 + i
    up = 0
    for i in range(a, b, 3):
        up = up * 3 + i
    return down, up


def run_time_step(a, b, s):
    total = 0
    for i in range(a, b, s):
        total = total * 2 + i
    return total


def loop_variable_is_not_the_counter(n):
    seen = 0
    for i in range(n):
        seen = seen * 2 + i
        i = 0
    return seen


def kinds_change(n):
    x = 1
    for i in range(n):
        x = x / 2
    return x


def float_and_int(a, b):
    return (
        a / b,
        a // 2.0,
        a % 0.75,
        a**2,
        -a,
        abs(-a),
        2**b,
        min(a, -a),
        max(a, a * 3, -a),
        int(a * 1.7),
        float(b),
        bool(a),
    )


def containers(n):
    box = {"a": n, "b": [n + 1, (n + 2, n + 3)]}
    first, (second, *rest) = box["a"], [5, 6, 7]
    box["c"] = first + second
    values = []
    for k, v in zip(["x", "y"], [n, 2 * n]):  # noqa: B905
        values.append(v if k == "x" else -v)
    values[0] = values[0] + 100
    return box, values, rest, len(values), [v * 2 for v in values if True], sum([1, n, 3])


def unrolled(n):
    total = 0
    for i, factor in enumerate((1, 10, 100)):
        if n == i:
            continue
        total += factor * n
    for key in {"p": 1, "q": 2}:
        total += 1 if key == "p" else 2
    return total


def unrolled_return(n):
    for factor in (1, 10, 100):
        if factor * n > 50:
            return factor
    return 0


def records(a, b):
    pair = Pair(a, b)
    other = pair.swapped
    return pair.total() - other.left * 2, Pair(left=other, right=a)


def defaults_inner(a, b=7, *, c=SCALE):
    return a * 100 + b * 10 + c


def defaults(a):
    return defaults_inner(a), defaults_inner(a, 1), defaults_inner(b=2, a=a, c=4)


def captured(a):
    return a * SCALE + FACTORS[1] + FACTORS[2]["deep"]


def walrus(a):
    if (half := a // 2) > 3:
        return half
    return half - 1


def deleted(a):
    b = a + 1
    del a
    a = b * 2
    return a


def nested_conditions(a, b):
    if a > 0:
        if b > 0:
            r = 1
        elif b == 0:
            r = 2
        else:
            return -5
    else:
        r = 3
        while r < b:
            r = r * 2
            if r == 24:
                break
    return r


def loop_carried_through_both(n):
    best, at = -1, -1
    i = 0
    while i < n:
        value = (i * 7919) % 31
        if value > best:
            best, at = value, i
        i += 1
    return best, at


def tensor_arithmetic(x, n):
    y = x * 2 - 1
    y = y / 4 + x @ x.T.sum() if False else y
    y += x
    return y, x > 0, -x, abs(x), x[0], x[-1], x[1:], x[::-1], x[..., 0], x[:, None], x[n:, 1]


def tensor_loop(x, n):
    total = x[0] * 0
    i = 0
    while i < x.shape[0]:
        if i != n:
            total = total + x[i]
        i += 1
    return total


def tensor_branch(x):
    s = 0
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            s += 1
        elif x[i, 1] > x[i, 0] and x[i, 1] != 0:
            s += 10
    return s


def tensor_writes(x, n):
    y = x + 0
    y[0] = 5
    y[1:, 0] = y[0, 1]
    y[n] += 1
    y[..., -1] = 7
    y[y > 6] = 0
    return y


def tensor_unpack(x):
    rows, columns = x.shape
    a, b, *_ = x[0], x[1], 3
    return a + b, rows * 10 + columns, x.shape[-1], len(x)


def mask_select(x):
    return x[x > 0], x[(x > 0) & (x < 1)], (x > 0) | (x < -1), ~(x > 0)


def static_leaf_in_loop(n):
    t = ("a", 0)
    count = 0
    while n > 0:
        if t[1] == 0:
            count += 1
        t = ("a", n)
        n -= 1
    return count


def container_comparisons(a, b):
    pair, other = Pair(a, b), Pair(b, a)
    return (a, b) == (1, 2), (a, b) != (b, a), [a, [b]] == [1, [2]], pair == other, pair == Pair(a, b), (1,) == (1.0,)


def membership(a, b):
    return 3 in (a, b), a not in [1, 2], 1 in (1.0, 2.0), "a" in "cat", "k" in {"k": a}


def fresh_containers(n):
    a = [n]
    for i in range(3):
        a[0] = a[0] + i
    if n > 2:
        a.append(1)
        a = [*a[:1]]
    d = {"k": n}
    d["k"] += 1
    return a, d


def index_list(x):
    return x[[0, 2]], x[[1, -1, 1]]


def formatted(n):
    table = {"01": n, "1": -n, "'x'": 5}
    return table[f"{1:02d}"], table[f"{'x'!r}"], table[f"{1}"]


def strict_zip(n):
    return sum([a * b for a, b in zip((1, 2), (n, 3), strict=True)])


def bump(x):
    x[0] += 1
    return 0


def evaluated_once(x):
    y = x + 0
    z = x + 0
    y[bump(z)] += 5
    return y, z


def small_folds(n):
    return isinstance(None, str | None), +(n > 0), abs(n > 0), isinstance(n, int | float)


def factorial(n):
    return n * factorial(n - 1) if n > 0 else 1


def recursive_or(n):
    return n <= 0 or recursive_or(n - 1)


def recursive_in_branch(n):
    if n <= 0:
        return 0
    x = recursive_in_branch(n - 1) + 1 if n > 2 else 2
    return x


def recursive_and(n):
    if n == 5:
        return True
    return n > 0 and recursive_and(n - 1)


def recursive_test(n):
    i = 0
    for i in range(n):
        if n > 1:
            while recursive_test(n - 1) > 5:
                return 7
        else:
            break
    return i


def list_arithmetic(a, b):
    items = [a] + [b]
    items += [a]
    items *= 2
    tail = items[1:]
    tail += [b]
    named = {"a": a}
    named |= {"b": b} | dict([("c", a)]) | dict({"d": b}, e=a)
    total = 0
    for item in list(items):
        items += [item]
        total += sum(x for x in items) + max(*(x for x in items))
    for double in (2 * x for x in items):
        total += double
    return items, tail, named, total, (a,) * 3, (0,) * 2 + (b,)


def scoped_comprehension(n):
    x = None
    y = [x for x in (1, 2)]
    return x is None, y


def swap_elements(x, n):
    y = x[0] + 0
    y[0], y[1] = y[1], y[0]
    first = y[2]
    y[2] = 99
    for i in range(n):
        for j in range(n - 1 - i):
            if y[j] > y[j + 1]:
                y[j], y[j + 1] = y[j + 1], y[j]
    return y, first


def shift_chain(x, n):
    a = b = c = d = e = f = g = h = 0
    for _ in range(n):
        h = g
        g = f
        f = e
        e = d
        d = c
        c = b
        b = a
        a = x
    return a, b, c, d, e, f, g, h


def mixed_into_helper(n):
    v = 1 if n > 0 else 2.5
    return helper_min(v, v)


def helper_min(a, b):
    return min(a, b)


def with_defaults(x, k=2, *, pair=(3, 4), name="scale"):
    return x * k + pair[0] if name == "scale" else x


@dataclass
class Computed:
    a: int
    b: int = 0

    def __post_init__(self) -> None:
        self.b = self.a * 2
