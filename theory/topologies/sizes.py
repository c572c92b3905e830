"""Which sizes a topology has: the refusal that names the nearest n that works."""

from __future__ import annotations

from math import isqrt

from dissensus.theory.errors import MixingError


def wrong_size(name: str, needs: str, n: int, below: int | None, above: int | None) -> MixingError:
    """The error for an impossible n: what is needed, what was given, the nearest sizes below and above that work."""
    works = [size for size in (below, above) if size is not None and size >= 1]
    if len(works) == 2:
        remedy = f"the nearest that work are {works[0]} and {works[1]}"
    else:
        remedy = f"the nearest that works is {works[0]}"
    return MixingError(f"{name} needs {needs}, got {n}; {remedy}")


def power_of_two_near(n: int) -> tuple[int, int]:
    """The powers of two below and above an n that is none itself."""
    above = 1 << (n - 1).bit_length()
    return above // 2, above


def is_power_of_two(n: int) -> bool:
    """Whether n = 1, 2, 4, 8, ..."""
    return n & (n - 1) == 0


def squarest(n: int) -> int:
    """The largest divisor of n that is at most its square root."""
    return next(a for a in range(isqrt(n), 0, -1) if n % a == 0)


def two_sides(name: str, n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Rows and columns of a rectangle of n workers; what is not given follows, the most square one by default."""
    for word, side in (("rows", rows), ("cols", cols)):
        if side is not None and side < 1:
            raise MixingError(f"{name}: {word} must be at least 1, got {side}")
    if rows is not None and cols is not None:
        if rows * cols != n:
            raise MixingError(
                f"{name}: {rows} rows of {cols} hold {rows * cols} workers, got n = {n}; "
                f"with these sides only n = {rows * cols} works"
            )
        return rows, cols
    given = rows if rows is not None else cols
    if given is None:
        a = squarest(n)
        return a, n // a
    if n % given:
        word = "rows" if rows is not None else "cols"
        raise wrong_size(name, f"a multiple of {word}={given}", n, n // given * given, -(-n // given) * given)
    return (given, n // given) if rows is not None else (n // given, given)
