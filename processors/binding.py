"""From names to types: an expression as its author wrote it becomes one that can be evaluated, or is refused."""

import difflib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from processors import syntax
from processors.arithmetic import COMPARISONS, DTYPES
from processors.expressions import FLOATS, NUMBERS, TEXT, TIME, Constant, Expression, Operation
from processors.syntax import Apply, Cast, Literal, Name, Place, ViewError

FUNCTIONS = ("abs", "sqrt", "nullif")


def nearest(name: str, known: Iterable[str]) -> str:
    """Name what the author may have meant."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known) or 'none'}"


class Scope:
    """The columns that an expression may name, and how to speak of it when it does not fit.

    For example::

        Scope(place, {"top_in": Input(field, "value")}, {"bpm"}).bind(expression)
    """

    def __init__(self, place: Place, columns: Mapping[str, Expression], relations: AbstractSet[str]) -> None:
        self.place = place
        self.columns = columns
        self.relations = relations  # names that may stand before the dot

    def refusal(self, at: int, wrong: str, remedy: str) -> ViewError:
        return self.place.refusal(at, wrong, remedy)

    def bind(self, node: syntax.Expression) -> Expression:
        if isinstance(node, Name):
            return self.column(node)
        if isinstance(node, Literal):
            return Constant(node.value, node.kind)
        if isinstance(node, Cast):
            return self.cast(self.bind(node.argument), node)
        return self.apply(node)

    def column(self, name: Name) -> Expression:
        if name.relation and name.relation not in self.relations:
            raise self.refusal(
                name.at, f"unknown relation {name.relation}", nearest(name.relation, sorted(self.relations))
            )
        if name.name not in self.columns:
            raise self.refusal(name.at, f"unknown column {name.name}", nearest(name.name, self.columns))
        return self.columns[name.name]

    def condition(self, node: syntax.Expression) -> Expression:
        """Bind what stands after WHERE."""
        return self.boolean(self.bind(node), node.at, "WHERE")

    def boolean(self, expression: Expression, at: int, what: str) -> Expression:
        if expression.type == "unknown":
            return self.constant(expression, "boolean", at)
        if expression.type != "boolean":
            raise self.refusal(
                at, f"{what} wants boolean, not {expression.type}", "write a condition, such as value > 0"
            )
        return expression

    def apply(self, node: Apply) -> Expression:
        if node.function in ("and", "or", "not"):
            terms = tuple(
                self.boolean(self.bind(argument), argument.at, node.function.upper()) for argument in node.arguments
            )
            return Operation(node.function, terms, "boolean")
        arguments = tuple(self.bind(argument) for argument in node.arguments)
        if node.function in ("is null", "is not null"):
            if arguments[0].type == "unknown":
                raise self.refusal(node.at, f"a constant {node.function.upper()} is not supported", "test a column")
            return Operation(node.function, arguments, "boolean")
        if node.function in COMPARISONS:
            return Operation(node.function, self.comparable(node, *arguments), "boolean")
        if node.function in ("+", "-", "*", "/"):
            return self.arithmetic(node, *arguments)
        if node.function == "negative":
            return self.negative(node, arguments[0])
        if node.function not in FUNCTIONS:
            raise self.refusal(node.at, f"unknown function {node.function}", nearest(node.function, FUNCTIONS))
        return self.function(node, arguments)

    def function(self, node: Apply, arguments: tuple[Expression, ...]) -> Expression:
        if len(arguments) != (2 if node.function == "nullif" else 1):
            raise self.refusal(
                node.at, f"{node.function} does not take {len(arguments)} arguments", f"write {node.function}(value)"
            )
        if node.function == "nullif":
            return self.nullif(node, *arguments)
        (value,) = arguments
        if value.type == "unknown":
            value = self.constant(value, "double precision", node.at)
        if value.type not in NUMBERS:
            raise self.refusal(
                node.at, f"{node.function}({value.type}) is not supported", "cast the argument to double precision"
            )
        if node.function == "sqrt":
            value = self.coerce(value, "double precision", node.at)
        return Operation(node.function, (value,), value.type)

    def negative(self, node: Apply, value: Expression) -> Expression:
        if isinstance(value, Constant) and value.type == "numeric":
            return Constant(str(-Decimal(str(value.value))), "numeric")
        if value.type not in NUMBERS:
            raise self.refusal(
                node.at, f"the operator - does not take {value.type}", "cast the value to double precision"
            )
        return Operation("negative", (value,), value.type)

    def nullif(self, node: Apply, left: Expression, right: Expression) -> Expression:
        value = self.constant(left, TEXT, node.at) if left.type == right.type == "unknown" else left
        compared = self.comparable(node, value, right)
        # PostgreSQL has operators for equal values of either two whole or two floating types, so keeps the first
        # one's type; a whole number beside a floating one becomes a double.
        alike = {left.type, right.type} <= {*FLOATS, "numeric", "integer", "bigint"} and left.type in FLOATS
        whole = {left.type, right.type} <= {"integer", "bigint"}
        result = value if alike or whole else compared[0]
        return Operation("nullif", (result, *compared), result.type)

    def arithmetic(self, node: Apply, left: Expression, right: Expression) -> Expression:
        kind = self.common(node, left, right)
        if kind not in NUMBERS:
            raise self.mismatch(node, left, right)
        return Operation(node.function, (self.coerce(left, kind, node.at), self.coerce(right, kind, node.at)), kind)

    def comparable(self, node: Apply, left: Expression, right: Expression) -> tuple[Expression, Expression]:
        kind = self.common(node, left, right)
        if kind == TEXT and node.function not in ("=", "<>", "nullif"):
            raise self.refusal(
                node.at, f"the order of texts, {node.function}, is not supported", "compare with = or <>"
            )
        return self.coerce(left, kind, node.at), self.coerce(right, kind, node.at)

    def common(self, node: Apply, left: Expression, right: Expression) -> str:
        """Find the type in which PostgreSQL would compute."""
        types = {left.type, right.type}
        if len(types) == 1 and not types & {"numeric", "unknown"}:
            return left.type
        if "unknown" in types:
            known = next(iter(types - {"unknown"}), "")
            if known and known not in ("numeric", TIME):
                return known
            raise self.refusal(
                node.at,
                f"{_spoken(node)} does not take {left.type} and {right.type}",
                "cast one side, as in value::real",
            )
        if types <= {"integer", "bigint"}:
            return "bigint"
        if types <= {*NUMBERS, "numeric"}:
            if types & set(FLOATS):
                return "double precision"
            raise self.refusal(
                node.at,
                f"{_spoken(node)} does not take {left.type} and {right.type}",
                "cast one side to double precision",
            )
        raise self.mismatch(node, left, right)

    def mismatch(self, node: Apply, left: Expression, right: Expression) -> ViewError:
        return self.refusal(
            node.at,
            f"{_spoken(node)} does not take {left.type} and {right.type}",
            "cast one side so that the types fit",
        )

    def cast(self, value: Expression, node: Cast) -> Expression:
        kind = node.type
        if isinstance(value, Constant) and value.type in ("numeric", "unknown"):
            return self.constant(value, kind, node.at)
        pairs = {(a, b) for a in NUMBERS for b in NUMBERS} | {("boolean", "integer"), ("integer", "boolean")}
        if value.type != kind and (value.type, kind) not in pairs:
            raise self.refusal(
                node.at,
                f"a cast from {value.type} to {kind} is not supported",
                f"cast a column of {', '.join(NUMBERS)}",
            )
        return self.coerce(value, kind, node.at)

    def coerce(self, value: Expression, kind: str, at: int) -> Expression:
        if value.type == kind:
            return value
        if isinstance(value, Constant) and value.type in ("numeric", "unknown"):
            return self.constant(value, kind, at)
        return Operation("cast", (value,), kind)

    def constant(self, value: Expression, kind: str, at: int) -> Constant:
        """Read a literal as the type that its surroundings want."""
        text = value.value if isinstance(value, Constant) else None
        if text is None or kind == TEXT:
            return Constant(text, kind)
        words = {"true": True, "t": True, "false": False, "f": False}
        try:
            if kind == "boolean":
                return Constant(words[str(text).strip().lower()], kind)
            if kind in FLOATS:
                return Constant(_float(str(text), kind), kind)
            whole = int(Decimal(str(text)).quantize(Decimal(1), ROUND_HALF_UP))
            DTYPES[kind].type(whole)
        except (KeyError, ValueError, ArithmeticError):
            raise self.refusal(at, f"{text!r} is no {kind}", f"write a value that {kind} can hold") from None
        return Constant(whole, kind)


def _spoken(node: Apply) -> str:
    return "NULLIF" if node.function == "nullif" else f"the operator {node.function}"


def _float(text: str, kind: str) -> float:
    """Read a floating constant; one that would become infinite or zero only by rounding is an error, as in SQL."""
    exact = Decimal(text.strip())
    with np.errstate(all="ignore"):
        number = float(DTYPES[kind].type(float(exact)))
    if exact.is_finite() and (np.isinf(number) or (number == 0) != (exact == 0)):
        raise OverflowError
    return number
