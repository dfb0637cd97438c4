"""Writes engine/models/probe.txt: what `slate probe model` builds its conversations from.

  python3 engine/models/train/probe_text.py > engine/models/probe.txt

One line a piece, fields parted by tabs.  Drawn by a seed that training does not have; the values of `held` lines
are in no training text.
    unsure  words that an answer has which says that it does not know
    small   user, assistant                       small talk: nothing to remember
    fact    family, subject, told, question, answer, value, corrected, new value
    held    the same, with a held-out name
Facts of one family are of one kind (somebody's job); one of the same family and subject contradicts another."""
import random

from evaluate import NAMED
from dialogue import *

N_SMALL, N_FACTS, N_HELD, SEED = 500, 700, 150, 'probe 7'


def flat(*fields):
    assert not any('\t' in f or '\n' in f for f in fields), fields
    print('\t'.join(fields))


def fact(kind, r):
    """A line, or nothing where the drawn fact cannot be asked."""
    d = Dialogue(r, MIXED, novel=0.0, real=0.0)
    key = d.draw()
    f, s = FAMS[key[0]], key[1]
    if f['kind'] == 'instr' or (kind == 'held' and f['kind'] not in NAMED):
        return False
    draw = (lambda: r.choice(HELD_OUT)) if kind == 'held' else (lambda: f['val'](d.w, s))
    value, new = draw(), draw()
    if value == new or value in new or new in value:
        return False
    before, v, after = split_value(r.choice(f['ans']), s, value)
    answer = (before if not before or before[-1] == ' ' else before + ' ') + v + after
    flat(kind, str(key[0]), s, fill(r.choice(f['tell']), s, value), fill(r.choice(f['ask']), s, ''), answer, value,
         fill(r.choice(f['fix']), s, new), new)
    return True


def main():
    flat('unsure', 'not know', 'not told')
    r = random.Random(SEED)
    for _ in range(N_SMALL):
        flat('small', *small_talk(r))
    for kind, n in (('fact', N_FACTS), ('held', N_HELD)):
        while n:
            n -= fact(kind, r)


if __name__ == '__main__':
    main()
