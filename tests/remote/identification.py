"""A test that sees arithmetic: which cells of a client follow from the numbers that leave
it.

`numbers` are all real numbers of an answer, in order, as a function of the client's table.
Their Jacobian with respect to the cells says what can be solved for: a cell whose unit
vector lies in the row space of the Jacobian is known to first order, and so is a sum over
fewer than five rows if the combination lies in it. Counts do not change with cells, as long
as the grouping is fixed; they are checked by themselves (`small_counts`).

The step of a difference is a part of the middle half of a column, as a standard deviation
can be that of one cell far from all others, with which squares are no lines any more. What
is found by a step to one side only is a jump (a cell that becomes the nearest one, or is
in another group): it is not known.

What an attacker may know beforehand is taken as known: which cells have the most frequent
value of a column (a laboratory value that is mostly 0), yes and no, categories and gaps.
"""

import itertools

import numpy as np

from fedtailor._base.groups import MIN_ROWS

STEP = 1e-6
"""Of a difference, in the column's own unit."""

SAME = 1e-6
"""A combination of cells is known if so little of it is outside of the row space."""


def real_numbers(content):
    """The floats of plain content (lists, dicts), in order."""
    if isinstance(content, dict):
        content = [content[name] for name in sorted(content)]
    if isinstance(content, list | tuple):
        return [number for part in content for number in real_numbers(part)]
    return [content] if isinstance(content, float) else []


def whole_numbers(content):
    """The integers of plain content, in order."""
    if isinstance(content, dict):
        content = [content[name] for name in sorted(content) if name != "format"]
    if isinstance(content, list | tuple):
        return [number for part in content for number in whole_numbers(part)]
    is_count = isinstance(content, int) and not isinstance(content, bool)
    return [content] if is_count else []


def small_counts(content):
    """Counts that tell of 1 to 4 rows."""
    return [count for count in whole_numbers(content) if 0 < count < MIN_ROWS]


def unknown_cells(table, columns):
    """(column, row) of the cells of columns of numbers that an attacker does not know.

    Args:
        table: column -> cells, None for a gap.
        columns: which columns vary.
    """
    cells = []
    for name in columns:
        present = [value for value in table[name] if value is not None]
        mode = max(sorted(set(present)), key=present.count, default=None)
        if present.count(mode) < MIN_ROWS:
            mode = None
        cells += [
            (name, row)
            for row, value in enumerate(table[name])
            if value is not None and value != mode
        ]
    return cells


def unit_of(column):
    """The length in which a column is varied: the width of the middle half of its cells.

    A standard deviation would be that of the largest cell, if this is far from all others.
    """
    present = [value for value in column if value is not None]
    low, high = np.quantile(present, [0.25, 0.75])
    return float(high - low) or float(np.std(present)) or 1.0


def moved(table, cells, by):
    """A table whose cells are moved, in units of their columns."""
    changed = {name: list(table[name]) for name, _ in cells}
    units = {name: unit_of(table[name]) for name in changed}
    for (name, row), one in zip(cells, by, strict=True):
        changed[name][row] += float(one) * units[name]
    return {**table, **changed}


def jacobian(numbers, table, cells, step=STEP):
    """[numbers, cells] derivatives of all numbers that leave, in units of each column.

    Args:
        numbers: function of a table to a vector.
        table: column -> cells.
        cells: (column, row) of what varies.
        step: of a difference; a long one where numbers are linear, and rounded.
    """
    start = np.asarray(numbers(table), float)
    columns = [
        (np.asarray(numbers(moved(table, [cell], [step])), float) - start) / step
        for cell in cells
    ]
    return np.stack(columns, axis=1)


def projection(matrix):
    """[cells, cells] the projection onto the row space, whatever units its rows have."""
    size = np.linalg.norm(matrix, axis=1, keepdims=True)
    matrix = matrix[size[:, 0] > 1e-9 * max(size.max(initial=0), 1e-300)]
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    if not len(matrix):
        return np.zeros((matrix.shape[1], matrix.shape[1]))
    _, singular, rows = np.linalg.svd(matrix, full_matrices=False)
    rows = rows[singular > 1e-5 * singular[0]]
    return rows.T @ rows


def identified(numbers, table, columns, most=MIN_ROWS - 1):
    """What follows from numbers: sets of fewer than five rows, of whose cells a combination
    is known. So a sum over few rows is found, and a product of two cells of one row.

    Args:
        numbers: function of a table to all numbers that leave the client.
        table: column -> cells.
        columns: columns of numbers.
        most: the largest sets of rows that are looked at.
    """
    cells = unknown_cells(table, columns)
    if not cells:
        return []
    # [rows, columns] the place of each cell; the last place, of zeros, stands for others.
    places = np.full((len(table[columns[0]]), len(columns)), -1)
    for place, (name, row) in enumerate(cells):
        places[row, list(columns).index(name)] = place

    def known_parts(step):
        """Of sets of rows, those of whose cells a combination is known."""
        known = projection(jacobian(numbers, table, cells, step))
        known = np.pad(known, ((0, 1), (0, 1)))

        def of(sets):
            of_set = places[sets].reshape(len(sets), -1)
            blocks = known[of_set[:, :, None], of_set[:, None, :]]
            return sets[np.linalg.eigvalsh(blocks)[:, -1] > 1 - SAME]

        return of

    known, to_other_side = known_parts(STEP), None
    rows, found = np.flatnonzero((places >= 0).any(axis=1)), list[tuple[int, ...]]()
    for size in range(1, most + 1):
        sets = np.array(list(itertools.combinations(rows, size)))
        if not len(sets) or not len(sets := known(sets)):
            continue
        to_other_side = to_other_side or known_parts(-STEP)
        # A larger set that holds a smaller one says nothing new.
        smaller = [set(it) for it in found]
        for it in to_other_side(sets).tolist():
            if not any(one <= set(it) for one in smaller):
                found.append(tuple(it))
    return found


def count_vectors(levels, count, total, squares, most=10_000):
    """Numbers of rows of each level that have this count, sum and sum of squares: all, or
    the first so many.

    Args:
        levels: whole numbers in ascending order, the first of them 0.
    """
    found = []

    def go_on(place, rows, count, total, squares):
        if len(found) >= most:
            return
        if place == 0:
            if total == squares == 0:
                found.append((count, *rows))
            return
        level = levels[place]
        if (
            total < 0
            or not total <= squares <= level * total
            or (count * squares < total**2)
        ):
            return
        for n in range(min(count, total // level, squares // level**2) + 1):
            go_on(
                place - 1,
                (n, *rows),
                count - n,
                total - n * level,
                squares - n * level**2,
            )

    go_on(len(levels) - 1, (), count, total, squares)
    return found
