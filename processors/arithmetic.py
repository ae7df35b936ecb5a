"""Operators and functions over whole columns, with PostgreSQL's results. Knows neither names nor views.

Every operation takes and returns columns with two masks: where SQL shows NULL, and where PostgreSQL would raise an
error (division by zero, out of range). Where a value is NULL or failed, `values` holds anything.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Bools

DTYPES: dict[str, np.dtype[Any]] = {
    "boolean": np.dtype(np.bool_),
    "integer": np.dtype(np.int32),
    "bigint": np.dtype(np.int64),
    "real": np.dtype(np.float32),
    "double precision": np.dtype(np.float64),
}
Values = NDArray[Any]


class Column(NamedTuple):
    """One value per reading, or a single one for all of them."""

    values: Values
    valid: Bools
    failed: Bools | None = None  # None: nowhere


Operation = Callable[[tuple[Column, ...], str], Column]  # arguments, type of the result


def _either(*masks: Bools | None) -> Bools | None:
    present = [mask for mask in masks if mask is not None]
    if not present:
        return None
    either = present[0]
    for mask in present[1:]:
        either = either | mask
    return either


def _strict(compute: Callable[..., tuple[Values, Bools | None]]) -> Operation:
    """NULL where an argument is NULL; an error only where none is."""

    def operation(arguments: tuple[Column, ...], kind: str) -> Column:
        valid = arguments[0].valid
        for argument in arguments[1:]:
            valid = valid & argument.valid
        values, bad = compute(*(argument.values for argument in arguments), kind)
        failed = _either(*(argument.failed for argument in arguments), None if bad is None else bad & valid)
        return Column(values, valid, failed)

    return operation


def _overflow(result: Values, *arguments: Values) -> Bools | None:
    """Where finite numbers gave an infinite one. The first look is cheap, and almost always the only one."""
    if np.isfinite(result).all():
        return None
    bad: Bools = np.isinf(result)
    for argument in arguments:
        bad = bad & ~np.isinf(argument)
    return bad


def _wraps(result: Values, left: Values, right: Values) -> Bools:
    """Where a sum of whole numbers has the other sign than both terms."""
    wraps: Bools = ((left ^ result) & (right ^ result)) < 0
    return wraps


def _add(left: Values, right: Values, _: str) -> tuple[Values, Bools | None]:
    result = left + right
    return result, _wraps(result, left, right) if result.dtype.kind == "i" else _overflow(result, left, right)


def _subtract(left: Values, right: Values, _: str) -> tuple[Values, Bools | None]:
    result = left - right
    return result, _wraps(result, left, ~right) if result.dtype.kind == "i" else _overflow(result, left, right)


def _multiply(left: Values, right: Values, _: str) -> tuple[Values, Bools | None]:
    result = left * right
    if result.dtype.kind == "f":
        zero = result == 0
        lost = zero & (left != 0) & (right != 0) if zero.any() else None
        return result, _either(_overflow(result, left, right), lost)
    if result.dtype == np.int32:
        wide = left.astype(np.int64) * right
        return result, wide != result
    least = np.iinfo(np.int64).min
    divisor = np.where((left == 0) | (left == -1), 1, left)
    bad = (result // divisor != right) | (result % divisor != 0)
    return result, np.where(left == -1, right == least, bad & (left != 0))


def _divide(left: Values, right: Values, _: str) -> tuple[Values, Bools | None]:
    zero = right == 0
    if right.dtype.kind == "f":
        result = left / right
        bad = zero & ~np.isnan(left) if zero.any() else None
        none = result == 0
        lost = none & (left != 0) & ~np.isinf(right) if none.any() else None
        return result, _either(bad, _overflow(result, left), lost)
    divisor = np.where(zero, 1, right)
    # Floor division rounds down, PostgreSQL's towards zero: one more where the signs differ and a rest remains.
    result = left // divisor
    result = result + ((left % divisor != 0) & ((left < 0) != (divisor < 0))).astype(result.dtype)
    return result, zero | ((left == np.iinfo(left.dtype).min) & (right == -1))


def _negative(value: Values, _: str) -> tuple[Values, Bools | None]:
    return -value, value == np.iinfo(value.dtype).min if value.dtype.kind == "i" else None


def _absolute(value: Values, _: str) -> tuple[Values, Bools | None]:
    return np.abs(value), value == np.iinfo(value.dtype).min if value.dtype.kind == "i" else None


def _root(value: Values, _: str) -> tuple[Values, Bools | None]:
    return np.sqrt(value), value < 0


def _cast(value: Values, kind: str) -> tuple[Values, Bools | None]:
    to = DTYPES[kind]
    if value.dtype == to:
        return value, None
    if to.kind == "f":
        result = value.astype(to)
        if to.itemsize >= value.dtype.itemsize or value.dtype.kind != "f":
            return result, None
        none = result == 0
        return result, _either(_overflow(result, value), none & (value != 0) if none.any() else None)
    if to.kind == "b":
        return value != 0, None
    if value.dtype.kind == "f":
        value = np.rint(value).astype(np.float64)
        # Both bounds are powers of two, so exact; NaN fails both comparisons.
        bad: Bools = ~((value >= float(np.iinfo(to).min)) & (value < -float(np.iinfo(to).min)))
        return np.where(bad, 0, value).astype(to), bad
    result = value.astype(to)
    return result, result != value


def _equal(left: Values, right: Values) -> Bools:
    result = np.asarray(left == right)
    return result | ((left != left) & (right != right)) if left.dtype.kind == "f" else result  # noqa: PLR0124 - NaN


def _less(left: Values, right: Values) -> Bools:
    result = np.asarray(left < right)
    return result | ((left == left) & (right != right)) if left.dtype.kind == "f" else result  # noqa: PLR0124 - NaN


COMPARISONS: dict[str, Callable[[Values, Values], Bools]] = {  # NaN equals NaN and is greater than every number
    "=": _equal,
    "<>": lambda left, right: ~_equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: ~_less(right, left),
    ">=": lambda left, right: ~_less(left, right),
}


def _comparison(compare: Callable[[Values, Values], Bools]) -> Operation:
    return _strict(lambda left, right, _: (compare(left, right), None))


def _and(arguments: tuple[Column, ...], _: str) -> Column:
    """Three-valued: false wins over NULL. What stands after a false term is not evaluated, so cannot fail."""
    result = arguments[0]
    for right in arguments[1:]:
        false = result.valid & ~result.values
        failed = _either(result.failed, None if right.failed is None else right.failed & ~false)
        valid = (result.valid & right.valid) | false | (right.valid & ~right.values)
        result = Column(result.values & result.valid & right.values & right.valid, valid, failed)
    return result


def _not(arguments: tuple[Column, ...], _: str) -> Column:
    (value,) = arguments
    return Column(~value.values, value.valid, value.failed)


def _or(arguments: tuple[Column, ...], kind: str) -> Column:
    negated = tuple(_not((argument,), kind) for argument in arguments)
    return _not((_and(negated, kind),), kind)


def _is_null(arguments: tuple[Column, ...], _: str) -> Column:
    (value,) = arguments
    return Column(~value.valid, np.ones_like(value.valid), value.failed)


def _is_not_null(arguments: tuple[Column, ...], _: str) -> Column:
    (value,) = arguments
    return Column(value.valid, np.ones_like(value.valid), value.failed)


def _nullif(arguments: tuple[Column, ...], _: str) -> Column:
    """The first argument, or NULL where the second and the third, which are compared, are equal.

    The first is kept apart because PostgreSQL compares real and double precision as doubles and returns the real.
    """
    value, left, right = arguments
    same = left.valid & right.valid & _equal(left.values, right.values)
    return Column(value.values, value.valid & ~same, _either(left.failed, right.failed))


OPERATIONS: dict[str, Operation] = {
    "+": _strict(_add),
    "-": _strict(_subtract),
    "*": _strict(_multiply),
    "/": _strict(_divide),
    "negative": _strict(_negative),
    "abs": _strict(_absolute),
    "sqrt": _strict(_root),
    "cast": _strict(_cast),
    "and": _and,
    "or": _or,
    "not": _not,
    "is null": _is_null,
    "is not null": _is_not_null,
    "nullif": _nullif,
} | {name: _comparison(compare) for name, compare in COMPARISONS.items()}
