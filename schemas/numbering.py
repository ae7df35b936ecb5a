"""Dense numbers for the instruments that one partition has seen, instead of the codes of one codec."""

import numpy as np

from schemas.batch import Columns, Int64s

UNKNOWN = -1


class Numbering:
    """Numbers instruments 0, 1, 2 … in order of appearance, by id.

    A codec's codes count over all its partitions and die with it; numbers are a partition's own, so arrays indexed
    by them stay small and can be restored from stored ids.
    """

    def __init__(self) -> None:
        self.ids: list[str | int] = []
        self._number: dict[str | int, int] = {}
        self._of_code: Int64s = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def number(self, instrument: str | int) -> int:
        """The number of an instrument, a new one at first sight."""
        number = self._number.setdefault(instrument, len(self.ids))
        if number == len(self.ids):
            self.ids.append(instrument)
        return number

    def of(self, columns: Columns) -> Int64s:
        """The number of each reading's instrument."""
        if len(columns.instruments) > len(self._of_code):
            grown = np.full(max(64, 2 * len(columns.instruments)), UNKNOWN, np.int64)
            grown[: len(self._of_code)] = self._of_code
            self._of_code = grown
        numbers = self._of_code[columns.instrument]
        unknown = numbers == UNKNOWN
        if unknown.any():
            for code in np.unique(columns.instrument[unknown]).tolist():
                self._of_code[code] = self.number(columns.instruments[code])
            numbers = self._of_code[columns.instrument]
        return numbers
