"""The loops of Brown clustering: taking a word in, finding the pair to merge, and merging it.

Clusters are slots of square tables. `ahead[c, d]` counts pairs of words, the first of cluster c and
the second of d; `back` is its transpose, so that a cluster's neighbours on either side lie in a
row. With f(n) = n log n and p(x, y) = f(x) + f(y) - f(x + y), merging a and b loses

    sum over x of p(ahead[a, x], ahead[b, x]) + p(back[a, x], back[b, x]), put right where x is a
    or b (`_own`), and less what their frequencies say (see `_scan`).

`loss[c, d]` holds the first two for c > d. A word that comes in changes it only for pairs of its
neighbours, and cluster b that joins a only in the rows of b's neighbours.
"""

from functools import partial

import numpy as np

from hmmlm.clusters.compiled import n_log_n as _f
from hmmlm.clusters.together.instructions import announce, finish, take, take_or_wait, wait
from hmmlm.machine_code import compile_loop

NEVER = 1e300
"""Added to the loss of a merge that must not be."""


@compile_loop
def _p(n, m, table):  # pragma: no cover
    return (_f(n, table) + _f(m, table)) - _f(n + m, table)


@compile_loop
def _own(aa, ab, ba, bb, table):  # pragma: no cover
    """What the sum over all x gets wrong at x = a and x = b, for the loss of merging a and b."""
    crossed = (_f(aa + ba, table) + _f(ab + bb, table)) + (_f(aa + ab, table) + _f(ba + bb, table))
    apart = (_f(aa, table) + _f(bb, table)) + (_f(ab, table) + _f(ba, table))
    return crossed - apart - _f(aa + ab + ba + bb, table)


@compile_loop
def _neighbours(row, size, goal):  # pragma: no cover
    """Lists where the first `size` cells of a row are not zero; gives how many."""
    found = 0
    for d in range(size):
        if row[d] != 0:
            goal[found] = d
            found += 1
    return found


@compile_loop
def _take_in(word, s, size, texts, words, slots):  # pragma: no cover
    """Makes a word the only one of slot s, whose counts are zero."""
    offsets, others, counts, back_offsets, back_others, back_counts, firsts, seconds, alone = texts
    slot_of_word, after, head, tail = words
    ahead, back, _, _, _, marginals = slots
    slot_of_word[word], after[word], head[s], tail[s] = s, -1, word, word
    for i in range(offsets[word], offsets[word + 1]):
        d = slot_of_word[others[i]]
        if d >= 0:
            ahead[s, d] += counts[i]
            back[d, s] += counts[i]
    for i in range(back_offsets[word], back_offsets[word + 1]):
        c = slot_of_word[back_others[i]]
        if c >= 0 and c != s:
            ahead[c, s] += back_counts[i]
            back[s, c] += back_counts[i]
    marginals[0, s], marginals[1, s] = firsts[word], seconds[word]
    marginals[4, s] = alone[word]
    marginals[2, s], marginals[3, s] = 0, 0
    for d in range(size):
        marginals[2, s] += ahead[s, d]
        marginals[3, s] += back[s, d]
        if d != s:
            marginals[2, d] += ahead[d, s]
            marginals[3, d] += back[d, s]


@compile_loop
def _frequencies(a, d, firsts, seconds, slots):  # pragma: no cover
    """Notes the logarithms of how often a or d come first and second."""
    c, e = max(a, d), min(a, d)
    slots[3][c, e] = np.log(np.float64(max(1, firsts)))
    slots[4][c, e] = np.log(np.float64(max(1, seconds)))


@compile_loop
def _fill(size, slots, table, sums, piece, pieces):  # pragma: no cover
    """All losses from the counts. sums[c] is the sum over x of f of the pairs of c and x."""
    ahead, back, loss, _, _, marginals = slots
    for c in range(piece, size, pieces):
        for d in range(c):
            # Four sums: an addition need not wait for the one before.
            one = two = three = four = 0.0
            for x in range(0, size - size % 2, 2):
                one += _f(ahead[c, x] + ahead[d, x], table)
                two += _f(back[c, x] + back[d, x], table)
                three += _f(ahead[c, x + 1] + ahead[d, x + 1], table)
                four += _f(back[c, x + 1] + back[d, x + 1], table)
            if size % 2:
                one += _f(ahead[c, size - 1] + ahead[d, size - 1], table)
                two += _f(back[c, size - 1] + back[d, size - 1], table)
            own = _own(ahead[c, c], ahead[c, d], ahead[d, c], ahead[d, d], table)
            loss[c, d] = (sums[c] + sums[d]) - ((one + two) + (three + four)) + own
            if marginals[4, c] + marginals[4, d] > 0:
                loss[c, d] += NEVER
            firsts, seconds = marginals[0, c] + marginals[0, d], marginals[1, c] + marginals[1, d]
            _frequencies(c, d, firsts, seconds, slots)


@compile_loop
def _enter(s, size, slots, table, lists, row, piece, pieces):  # pragma: no cover
    """The losses of pairs of neighbours of a new slot s, and of s with everyone."""
    ahead, back, loss, _, _, marginals = slots
    first, stop = size * piece // pieces, size * (piece + 1) // pieces
    for d in range(first, stop):
        row[d] = _own(ahead[s, s], ahead[s, d], ahead[d, s], ahead[d, d], table)
        if marginals[4, s] + marginals[4, d] > 0:
            row[d] += NEVER
        firsts, seconds = marginals[0, s] + marginals[0, d], marginals[1, s] + marginals[1, d]
        _frequencies(s, d, firsts, seconds, slots)
    for direction in range(2):
        counts, across = (ahead, back) if direction == 0 else (back, ahead)
        number = _neighbours(counts[s], size, lists[direction])
        for i in range(number):
            x = lists[direction, i]
            n = counts[s, x]
            own = _f(n, table)
            for d in range(first, stop):
                m = across[x, d]
                row[d] += (own + _f(m, table)) - _f(n + m, table)
            if x % pieces != piece or x == s:
                continue
            for j in range(i):
                d = lists[direction, j]
                if d != s:
                    m = counts[s, d]
                    loss[x, d] += (own + _f(m, table)) - _f(n + m, table)
    for d in range(first, stop):
        loss[max(s, d), min(s, d)] = row[d]


# The least of a row is found on vectors if no number is nan.
@partial(compile_loop, fastmath={"nnan", "nsz"})
def _least(loss, log_firsts, log_seconds, c, firsts, seconds, own):  # pragma: no cover
    least = np.inf
    for d in range(c):
        value = (
            loss[c, d]
            + (firsts[c] + firsts[d]) * log_firsts[c, d]
            + (seconds[c] + seconds[d]) * log_seconds[c, d]
            - (own[c] + own[d])
        )
        least = value if value < least else least
    return least


@compile_loop
def _scan(size, slots, sums, found, piece, pieces):  # pragma: no cover
    """The pair whose merge loses least, of every `pieces`-th row; found = (loss, c, d).

    Its frequencies give back (l_a + l_b) log(L_a + L_b) - l_a log L_a - l_b log L_b, with L_a how
    often a comes first and l_a how often before a word that was taken in; and so for second.
    """
    _, _, loss, log_firsts, log_seconds, marginals = slots
    firsts, seconds, own = sums[0], sums[1], sums[2]
    for d in range(size):
        firsts[d], seconds[d] = marginals[2, d], marginals[3, d]
        own[d] = firsts[d] * np.log(np.float64(max(1, marginals[0, d])))
        own[d] += seconds[d] * np.log(np.float64(max(1, marginals[1, d])))
    found[0], found[1], found[2] = np.inf, -1, -1
    for c in range(piece, size, pieces):
        least = _least(loss, log_firsts, log_seconds, c, firsts, seconds, own)
        if least < found[0]:
            found[0], found[1] = least, c
    c = int(found[1])
    for d in range(c):
        value = (
            loss[c, d]
            + (firsts[c] + firsts[d]) * log_firsts[c, d]
            + (seconds[c] + seconds[d]) * log_seconds[c, d]
            - (own[c] + own[d])
        )
        if value == found[0]:
            found[2] = d
            break


@compile_loop
def _choose(found, pieces):  # pragma: no cover
    """The best of what the pieces found; of equals the lowest slots."""
    best = 0
    for i in range(1, pieces):
        better = found[i, 0] < found[best, 0]
        same = found[i, 0] == found[best, 0]
        if found[i, 1] >= 0 and (better or (same and found[i, 1] < found[best, 1])):
            best = i
    return int(found[best, 2]), int(found[best, 1])


@compile_loop
def _merge_losses(a, b, size, slots, table, lists, units, piece, pieces):  # pragma: no cover
    """All losses as they are when b has joined a; the counts are those from before."""
    ahead, back, loss, _, _, marginals = slots
    first, stop = size * piece // pieces, size * (piece + 1) // pieces
    aa, ab, ba, bb = ahead[a, a], ahead[a, b], ahead[b, a], ahead[b, b]
    whole, row = aa + ab + ba + bb, units[2]
    for d in range(first, stop):
        if d in (a, b):
            row[d] = 0
            continue
        ad, da, bd, db, dd = ahead[a, d], back[a, d], ahead[b, d], back[b, d], ahead[d, d]
        row[d] = _own(whole, ad + bd, da + db, dd, table) - _own(aa, ad, da, dd, table)
        row[d] += _p(whole, da + db, table) - (_p(aa, da, table) + _p(ab, db, table))
        row[d] += _p(whole, ad + bd, table) - (_p(aa, ad, table) + _p(ba, bd, table))
        firsts = marginals[0, a] + marginals[0, b] + marginals[0, d]
        seconds = marginals[1, a] + marginals[1, b] + marginals[1, d]
        _frequencies(a, d, firsts, seconds, slots)
    numbers = (_neighbours(ahead[b], size, lists[0]), _neighbours(back[b], size, lists[1]))
    for direction in range(2):
        counts, across = (ahead, back) if direction == 0 else (back, ahead)
        unit = units[direction]
        for d in range(size):
            da, db = counts[a, d], counts[b, d]
            unit[d] = _f(da + db, table) - (_f(da, table) + _f(db, table))
        for i in range(numbers[direction]):
            x = lists[direction, i]
            if x in (a, b):
                continue
            n, more = counts[a, x], counts[a, x] + counts[b, x]
            own = _f(more, table) - _f(n, table)
            for d in range(first, stop):
                m = across[x, d]
                row[d] += own - (_f(more + m, table) - _f(n + m, table))
    for d in range(first, stop):
        if d not in (a, b):
            loss[max(a, d), min(a, d)] += row[d]
    for c in range(piece, size, pieces):
        if c in (a, b) or (ahead[b, c] == 0 and back[b, c] == 0):
            continue
        for direction in range(2):
            counts, unit = (ahead if direction == 0 else back), units[direction]
            ca, cb, own = counts[a, c], counts[b, c], unit[c]
            if cb != 0:
                for d in range(c):
                    da, db = counts[a, d], counts[b, d]
                    split = _f(ca + da, table) + _f(cb + db, table)
                    row[d] = (own + unit[d]) + (split - _f(ca + da + cb + db, table))
                # Around a and b, whose own cells may be another thread's just now.
                low, high = min(a, b), max(a, b)
                for begin, end in ((0, low), (low + 1, high), (high + 1, c)):
                    for d in range(begin, min(end, c)):
                        loss[c, d] += row[d]
                # A later row that has no pairs with b is visited by nobody else.
                for d in range(c + 1, size):
                    da = counts[a, d]  # nothing changes where it is 0
                    if da != 0 and ahead[b, d] == 0 and back[b, d] == 0 and d not in (a, b):
                        split = _f(ca + da, table) + _f(cb, table)
                        loss[d, c] += own + (split - _f(ca + da + cb, table))
            else:
                for i in range(numbers[direction]):
                    d = lists[direction, i]
                    if d < c and d not in (a, b):
                        da, db = counts[a, d], counts[b, d]
                        split = _f(ca + da, table) + _f(db, table)
                        loss[c, d] += unit[d] + (split - _f(ca + da + db, table))


@compile_loop
def _merge_counts(a, b, size, words, slots):  # pragma: no cover
    """Adds the counts and words of b to those of a; the counts of b are zero then."""
    slot_of_word, after, head, tail = words
    ahead, back, _, _, _, marginals = slots
    for counts in (ahead, back):
        for d in range(size):
            counts[a, d] += counts[b, d]
            counts[b, d] = 0
        for d in range(size):
            counts[d, a] += counts[d, b]
            counts[d, b] = 0
    for i in range(5):
        marginals[i, a] += marginals[i, b]
        marginals[i, b] = 0
    word = head[b]
    while word >= 0:
        slot_of_word[word] = a
        word = after[word]
    after[tail[a]] = head[b]
    tail[a] = tail[b]


@compile_loop
def _order(a, b, size, slots):  # pragma: no cover
    """The pair with the one that has fewer neighbours last: that one joins the other."""
    ahead, back = slots[0], slots[1]
    more = 0
    for d in range(size):
        more += int(ahead[a, d] != 0) + int(back[a, d] != 0)
        more -= int(ahead[b, d] != 0) + int(back[b, d] != 0)
    return (a, b) if more >= 0 else (b, a)


# The kinds of work that threads share; `job` says which, and for which slots.
_FILL, _ENTER, _SCAN, _MERGE = 0, 1, 2, 3


@compile_loop
def _do(piece, job, slots, table, work):  # pragma: no cover
    """One piece of the work that is announced."""
    lists, units, sums, found = work
    kind, a, b, size, first = job[0], job[1], job[2], job[3], job[4]
    i, pieces = piece - first, found.shape[0]
    if kind == _FILL:
        _fill(size, slots, table, units[0, 0], i, pieces)
    elif kind == _ENTER:
        _enter(a, size, slots, table, lists[i], units[i, 2], i, pieces)
    elif kind == _SCAN:
        _scan(size, slots, sums[i], found[i], i, pieces)
    else:
        _merge_losses(a, b, size, slots, table, lists[i], units[i], i, pieces)


@compile_loop
def help(job, slots, table, work, board):  # pragma: no cover
    """What the other threads run."""
    piece = take_or_wait(board)
    while piece >= 0:
        _do(piece, job, slots, table, work)
        finish(board)
        piece = take_or_wait(board)


@compile_loop
def _share(kind, a, b, size, job, slots, table, work, board):  # pragma: no cover
    """Does a kind of work with whoever helps."""
    pieces = work[3].shape[0]
    job[0], job[1], job[2], job[3] = kind, a, b, size
    job[4] = job[5]
    job[5] += pieces
    announce(board, pieces)
    piece = take(board)
    while piece >= 0:
        _do(piece, job, slots, table, work)
        finish(board)
        piece = take(board)
    wait(board)


@compile_loop
def start(order, window, texts, words, job, slots, table, work, board):  # pragma: no cover
    """Takes in the first words, one slot each."""
    sums = work[1][0, 0]
    for s in range(window):
        _take_in(order[s], s, s + 1, texts, words, slots)
    for c in range(window):
        sums[c] = 0
        for x in range(window):
            sums[c] += _f(slots[0][c, x], table) + _f(slots[1][c, x], table)
    _share(_FILL, 0, 0, window, job, slots, table, work, board)


@compile_loop
def _merge(size, job, slots, table, work, board):  # pragma: no cover
    """Finds the best pair and brings the losses to where it is merged; gives the pair."""
    _share(_SCAN, 0, 0, size, job, slots, table, work, board)
    a, b = _choose(work[3], work[3].shape[0])
    a, b = _order(a, b, size, slots)
    _share(_MERGE, a, b, size, job, slots, table, work, board)
    return a, b


@compile_loop
def grow(
    order, begin, stop, free, merges, texts, words, job, slots, table, work, board
):  # pragma: no cover
    """Takes in words order[begin:stop], each into the free slot; after each the best pair merges.

    `merges` gets a word of either cluster; gives the slot that is free at the end.
    """
    size, head = slots[0].shape[0], words[2]
    for i in range(begin, stop):
        _take_in(order[i], free, size, texts, words, slots)
        _share(_ENTER, free, free, size, job, slots, table, work, board)
        a, b = _merge(size, job, slots, table, work, board)
        merges[i, 0], merges[i, 1] = head[a], head[b]
        _merge_counts(a, b, size, words, slots)
        free = b
    return free


@compile_loop
def move(b, last, slots, words):  # pragma: no cover
    """Puts the last slot in the place of b, which is empty."""
    _, _, head, tail = words
    ahead, back, loss, log_firsts, log_seconds, marginals = slots
    for counts in (ahead, back):
        for d in range(last + 1):
            counts[b, d] = counts[last, d]
            counts[last, d] = 0
        for d in range(last + 1):
            counts[d, b] = counts[d, last]
            counts[d, last] = 0
    for table in (loss, log_firsts, log_seconds):
        for d in range(last):
            if d != b:
                table[max(b, d), min(b, d)] = table[last, d]
    for i in range(5):
        marginals[i, b] = marginals[i, last]
        marginals[i, last] = 0
    head[b], tail[b] = head[last], tail[last]


@compile_loop
def shrink(size, stop, merges, words, job, slots, table, work, board):  # pragma: no cover
    """Merges slots 0 to size - 1 until `stop` are left; `merges` gets a word of either."""
    head = words[2]
    while size > stop:
        a, b = _merge(size, job, slots, table, work, board)
        merges[size - 2, 0], merges[size - 2, 1] = head[a], head[b]
        _merge_counts(a, b, size, words, slots)
        move(b, size - 1, slots, words)
        size -= 1
