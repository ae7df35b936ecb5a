"""What an expression means, for descriptions of columns: its text and its unit. Computes nothing."""

from processors.aggregates.shape import Aggregate
from processors.expressions import Constant, Expression, Input

PRECEDENCE = {"or": 1, "and": 2, "not": 3, "+": 6, "-": 6, "*": 7, "/": 7, "negative": 8}  # the rest: comparisons, 4


def text(expression: Expression, around: int = 0) -> str:
    """Write an expression as SQL, with no more parentheses than it needs and without casts."""
    if isinstance(expression, Input):
        return expression.field.name
    if isinstance(expression, Constant):
        return "NULL" if expression.value is None else str(expression.value)
    name, arguments = expression.name, expression.arguments
    if name == "cast":
        return text(arguments[0], around)
    if name == "nullif":
        return f"NULLIF({text(arguments[1])}, {text(arguments[2])})"
    if name in ("abs", "sqrt"):
        return f"{name}({text(arguments[0])})"
    own = PRECEDENCE.get(name, 4)
    if name in ("is null", "is not null"):
        written = f"{text(arguments[0], own + 1)} {name.upper()}"
    elif name == "negative":
        written = f"-{text(arguments[0], own + 1)}"
    elif name == "not":
        written = f"NOT {text(arguments[0], own)}"
    else:
        terms = [text(argument, own if i == 0 else own + 1) for i, argument in enumerate(arguments)]
        written = f" {name.upper()} ".join(terms)
    return f"({written})" if own < around else written


def unit(expression: Expression) -> str:
    """Find the unit of a value; "" where it is not known or is a product that has no short name."""
    if isinstance(expression, Input):
        return expression.field.unit
    if isinstance(expression, Constant):
        return "1"
    units = [unit(argument) for argument in expression.arguments]
    if expression.name in ("cast", "negative", "abs", "nullif"):
        return units[0]
    if expression.name in ("+", "-", "/") and units[0] == units[1] != "":
        return "1" if expression.name == "/" else units[0]
    if expression.name in ("*", "/") and units[1] == "1":
        return units[0]
    return units[1] if expression.name == "*" and units[0] == "1" else ""


def describe(aggregate: Aggregate, argument: Expression | None) -> tuple[str, str]:
    """Give the unit and the meaning of an aggregate's column. No argument: count(*)."""
    if argument is None:
        return "1", "number of readings"
    inner = unit(argument)
    own = {0: "1", 1: inner, 2: inner if inner in ("", "1") else f"{inner}^2"}[aggregate.unit_power]
    plain = argument
    while not isinstance(plain, Input | Constant) and plain.name == "cast":
        plain = plain.arguments[0]
    meaning = plain.field.meaning if isinstance(plain, Input) else ""
    return own, f"{aggregate.words} of {meaning or text(argument)}"
