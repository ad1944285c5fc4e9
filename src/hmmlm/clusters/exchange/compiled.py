"""The loops of exchange clustering: the best class for each of a few words, and moving them.

`ahead[c, d]` counts pairs of words, the first of class c and the second of d; `back` is its
transpose, so that for one neighbouring class d all classes that a word might go to lie in a row.
With f(n) = n log n the mutual information is, up to constants and the factor 1 / N,

    sum of f(ahead[c, d]) - sum of f(firsts[c]) - sum of f(seconds[d]).
"""

from hmmlm.clusters.compiled import n_log_n as _f
from hmmlm.clusters.together.instructions import announce, finish, take, take_or_wait, wait
from hmmlm.machine_code import compile_loop


@compile_loop
def _gather(word, offsets, others, counts, class_of_word, by_class, listed):  # pragma: no cover
    """Counts a word's neighbours by class, without itself; gives how many classes and itself."""
    number, itself = 0, 0
    for i in range(offsets[word], offsets[word + 1]):
        other = others[i]
        if other == word:
            itself = counts[i]
            continue
        d = class_of_word[other]
        if d >= 0:
            if by_class[d] == 0:
                listed[number] = d
                number += 1
            by_class[d] += counts[i]
    return number, itself


@compile_loop
def _gather_both(word, texts, class_of_word, by_class, listed):  # pragma: no cover
    """Counts a word's neighbours behind and before it; gives both numbers of classes and itself."""
    offsets, others, counts, back_offsets, back_others, back_counts, _, _ = texts
    after, itself = _gather(word, offsets, others, counts, class_of_word, by_class[0], listed[0])
    before, _ = _gather(
        word, back_offsets, back_others, back_counts, class_of_word, by_class[1], listed[1]
    )
    return (after, before), itself


@compile_loop
def _forget(by_class, listed, numbers):  # pragma: no cover
    """Sets what `_gather_both` counted back to 0."""
    for direction in range(2):
        for i in range(numbers[direction]):
            by_class[direction, listed[direction, i]] = 0


@compile_loop
def _gain_of(c, here, itself, tables, word_sums, by_class, listed, numbers, table):
    """What the word adds to the sum as a member of class c, which it may be in (`here`)."""
    # pragma: no cover
    ahead, back, firsts, seconds = tables
    gain = 0.0
    for direction in range(2):
        counts, mine = (ahead if direction == 0 else back), by_class[direction]
        for i in range(numbers[direction]):
            d = listed[direction, i]
            if d != c:
                n = counts[c, d]
                if c == here:
                    n -= mine[d]
                elif d == here:
                    n -= by_class[1 - direction, c]
                gain += _f(n + mine[d], table) - _f(n, table)
    mine = by_class[0, c] + by_class[1, c] + itself
    n = ahead[c, c] - (mine if c == here else 0)
    gain += _f(n + mine, table) - _f(n, table)
    n = firsts[c] - (word_sums[0] if c == here else 0)
    gain -= _f(n + word_sums[0], table) - _f(n, table)
    n = seconds[c] - (word_sums[1] if c == here else 0)
    gain -= _f(n + word_sums[1], table) - _f(n, table)
    return gain


@compile_loop
def _add_row(counts, d, more, table, gains, largest):  # pragma: no cover
    """gains[c] += f(counts[d, c] + more) - f(counts[d, c])."""
    if largest + more < table.shape[0]:
        for c in range(gains.shape[0]):
            n = counts[d, c]
            gains[c] += table[n + more] - table[n]
    else:
        for c in range(gains.shape[0]):
            n = counts[d, c]
            gains[c] += _f(n + more, table) - _f(n, table)


@compile_loop
def _within(n, ahead, back, itself, table):  # pragma: no cover
    """What is to be added where pairs with words of one class were counted as if of two.

    It is 0 for a word without pairs with itself that has words of the class on one side only.
    """
    apart = (_f(n + ahead, table) - _f(n, table)) + (_f(n + back, table) - _f(n, table))
    return (_f(n + ahead + back + itself, table) - _f(n, table)) - apart


@compile_loop
def _best(word, texts, class_of_word, tables, is_open, table, scratch):  # pragma: no cover
    """The class in which a word adds most."""
    ahead, back, firsts, seconds = tables
    by_class, listed, gains = scratch
    size = gains.shape[0]
    here = class_of_word[word]
    numbers, itself = _gather_both(word, texts, class_of_word, by_class, listed)
    word_sums = (texts[6][word], texts[7][word])
    for c in range(size):
        gains[c] = _f(firsts[c], table) - _f(firsts[c] + word_sums[0], table)
        gains[c] += _f(seconds[c], table) - _f(seconds[c] + word_sums[1], table)
        if itself > 0:
            gains[c] += _within(ahead[c, c], by_class[0, c], by_class[1, c], itself, table)
    if itself == 0:
        for i in range(numbers[0]):
            c = listed[0, i]
            gains[c] += _within(ahead[c, c], by_class[0, c], by_class[1, c], 0, table)
    for direction in range(2):
        across, sums = (back, seconds) if direction == 0 else (ahead, firsts)
        other = by_class[1 - direction]
        for i in range(numbers[direction]):
            d = listed[direction, i]
            more = by_class[direction, d]
            if d != here:
                _add_row(across, d, more, table, gains, sums[d])
            else:
                for c in range(size):
                    n = across[d, c] - other[c]
                    gains[c] += _f(n + more, table) - _f(n, table)
    stay = _gain_of(here, here, itself, tables, word_sums, by_class, listed, numbers, table)
    best, most = here, stay
    for c in range(size):
        if gains[c] > most and c != here and is_open[c]:
            best, most = c, gains[c]
    _forget(by_class, listed, numbers)
    return best


@compile_loop
def _move(word, goal, texts, class_of_word, tables, table, scratch, least):  # pragma: no cover
    """Moves a word if that gains more than `least` as things are now; gives the gain or 0."""
    ahead, back, firsts, seconds = tables
    by_class, listed, _ = scratch
    here = class_of_word[word]
    numbers, itself = _gather_both(word, texts, class_of_word, by_class, listed)
    word_sums = (texts[6][word], texts[7][word])
    gain = _gain_of(goal, here, itself, tables, word_sums, by_class, listed, numbers, table)
    gain -= _gain_of(here, here, itself, tables, word_sums, by_class, listed, numbers, table)
    if gain > least:
        for i in range(numbers[0]):
            d = listed[0, i]
            more = by_class[0, d]
            ahead[here, d] -= more
            back[d, here] -= more
            ahead[goal, d] += more
            back[d, goal] += more
        for i in range(numbers[1]):
            d = listed[1, i]
            more = by_class[1, d]
            ahead[d, here] -= more
            back[here, d] -= more
            ahead[d, goal] += more
            back[goal, d] += more
        ahead[here, here] -= itself
        back[here, here] -= itself
        ahead[goal, goal] += itself
        back[goal, goal] += itself
        firsts[here] -= word_sums[0]
        firsts[goal] += word_sums[0]
        seconds[here] -= word_sums[1]
        seconds[goal] += word_sums[1]
        class_of_word[word] = goal
    _forget(by_class, listed, numbers)
    return gain if gain > least else 0.0


@compile_loop
def _look(piece, shared, thread):  # pragma: no cover
    """The best class for one word of the batch that is announced."""
    job, order, goals, texts, class_of_word, tables, is_open, table, scratch = shared
    mine = (scratch[0][thread], scratch[1][thread], scratch[2][thread])
    i = piece - job[0]
    goals[i] = _best(order[job[1] + i], texts, class_of_word, tables, is_open, table, mine)


@compile_loop
def help(shared, thread, board):  # pragma: no cover
    """What the other threads run."""
    piece = take_or_wait(board)
    while piece >= 0:
        _look(piece, shared, thread)
        finish(board)
        piece = take_or_wait(board)


@compile_loop
def improve(begin, stop, least, shared, board):  # pragma: no cover
    """Looks at words order[begin:stop], a batch at a time, and moves those that gain.

    Threads share the looking. The moves of a batch are then made one after the other, each checked
    again after those before it, so that the result is the same for any number of threads. No class
    is emptied: moving its last word would merge two, which never gains. Gives what was gained.
    """
    job, order, goals, texts, class_of_word, tables, _, table, scratch = shared
    gained = 0.0
    mine = (scratch[0][0], scratch[1][0], scratch[2][0])
    for first in range(begin, stop, goals.shape[0]):
        number = min(goals.shape[0], stop - first)
        job[0], job[1] = job[2], first
        job[2] += number
        announce(board, number)
        piece = take(board)
        while piece >= 0:
            _look(piece, shared, 0)
            finish(board)
            piece = take(board)
        wait(board)
        for i in range(number):
            word, goal = order[first + i], goals[i]
            if goal != class_of_word[word]:
                gained += _move(word, goal, texts, class_of_word, tables, table, mine, least)
    return gained
