"""Rows are found by pane and group, begin empty, and give their place back when their pane is dropped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from processors.table import MISSING, RowTable
from schemas.batch import Int64s


class Ones:
    """A layout whose empty state is 1, so that an uninitialised row shows."""

    words = 3

    def init(self, table: NDArray[np.int64], rows: Int64s) -> None:
        table[rows] = 1


steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 200)), min_size=1, max_size=20),
        st.integers(-3, 3),
    ),
    max_size=25,
)


@given(steps)
def test_a_table_is_a_map_from_pane_and_group_to_a_row(sequence: list[list[tuple[int, int]] | int]) -> None:
    table, expected = RowTable(Ones()), dict[tuple[int, int], int]()
    for step in sequence:
        if isinstance(step, int):
            if step in table.panes:
                table.drop(step)
            expected = {key: value for key, value in expected.items() if key[0] != step}
        else:
            panes, groups = np.array(step, np.int64).T
            rows = table.find_or_make(panes, groups)
            assert len(set(rows.tolist())) == len(set(step))
            for key, row in zip(step, rows.tolist(), strict=True):
                assert table.state[row].tolist() == [1, 1, expected.get(key, 1)]
                assert (table.pane[row], table.group[row]) == key
                if key not in expected:
                    assert table.n[row] == table.absorbed[row] == 0
                    expected[key] = 7 + len(expected)
                    table.state[row, 2], table.n[row], table.absorbed[row] = expected[key], 5, 9
        assert len(table) == len(expected)
        for pane in {key[0] for key in expected}:
            assert table.groups_of(pane).tolist() == sorted(g for p, g in expected if p == pane)


def test_what_is_not_there_is_missing() -> None:
    table = RowTable(Ones())
    assert table.find(0, np.array([0, 10_000])).tolist() == [MISSING, MISSING]
    table.find_or_make(np.array([0]), np.array([3]))
    assert (table.find(0, np.array([3, 4, 10_000])) == MISSING).tolist() == [False, True, True]
    assert table.groups_of(1).tolist() == []
