"""Every aggregate that a view may use, by its name in SQL. A new one is a file here, and a line below."""

from processors.aggregates import avg, count, max, min, moments, sum  # noqa: A004 - named as SQL names them
from processors.aggregates.shape import Aggregate

AGGREGATES: dict[str, Aggregate] = {
    aggregate.name: aggregate for file in (count, sum, avg, min, max, moments) for aggregate in file.AGGREGATES
}
