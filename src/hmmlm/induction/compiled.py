"""Loops of the assignment problem that are too slow in Python."""

import numpy as np

from hmmlm.machine_code import compile_loop


@compile_loop
def assign(costs):  # pragma: no cover
    """The column of each row that together cost least; there are as many columns as rows or more.

    Rows come in one by one, each by the cheapest way of moving others on (Jonker & Volgenant).
    """
    rows, columns = costs.shape
    row_of = np.full(columns, -1, np.int64)
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    before = np.empty(columns, np.int64)
    for new in range(rows):
        least = np.full(columns, np.inf)
        is_done = np.zeros(columns, np.bool_)
        row, last, reached = new, -1, 0.0
        while row >= 0:
            best, goal = np.inf, -1
            for column in range(columns):
                if is_done[column]:
                    continue
                cost = reached + costs[row, column] - row_price[row] - column_price[column]
                if cost < least[column]:
                    least[column], before[column] = cost, last
                if least[column] < best or (least[column] == best and row_of[column] < 0):
                    best, goal = least[column], column
            is_done[goal] = True
            last, reached, row = goal, best, row_of[goal]
        for column in range(columns):
            if is_done[column]:
                if row_of[column] >= 0:
                    row_price[row_of[column]] += reached - least[column]
                column_price[column] -= reached - least[column]
        row_price[new] += reached
        while last >= 0:
            row_of[last] = row_of[before[last]] if before[last] >= 0 else new
            last = before[last]
    column_of = np.empty(rows, np.int64)
    for column in range(columns):
        if row_of[column] >= 0:
            column_of[row_of[column]] = column
    return column_of
