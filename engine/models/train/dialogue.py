"""Conversations whose answers need memory: facts are told, asked, corrected, never told.

A conversation is a list of segments (text, kind):
    kind 'u' user text, 'a' assistant text, 'v' the recalled value inside an assistant answer.
Its form is RWKV's usual one:   User: ...\\n\\nAssistant: ...\\n\\n"""
from facts import *
from talk import *

OKAY = ['Okay.', 'Got it.', 'I will remember that.', 'Good to know.', 'I see.', 'All right.', 'Noted.', 'Thanks, I will remember.',
        'I have made a note of it.', 'Understood.']

# Relative weights of what happens next; far: how often the fact asked for is the one mentioned
# longest ago; quiz: many questions in a row.
DENSE = dict(tell=5, ask=6, fix=1.5, unknown=2.2, small=1, skill=0.3, rev=0.3, list=0.2, quiz=0.5, far=0.3)
BUSY = dict(tell=5, ask=3.5, fix=1.6, unknown=1.7, small=1, skill=0.3, rev=0.2, list=0.3, quiz=0.9, far=0.85)
MIXED = dict(tell=4, ask=4, fix=1.5, unknown=1.9, small=4, skill=0.8, rev=0.4, list=0.4, quiz=0.6, far=0.6)
SPARSE = dict(tell=1.5, ask=1.5, fix=0.8, unknown=1, small=9, skill=1.2, rev=0.2, list=0.2, quiz=0.7, far=0.9)


BOARD = dict(tell=5, ask=7, small=0.7, quiz=0.5, far=0.5)       # the whiteboard's: nothing but recall
PLAIN = [i for i, f in enumerate(FAMS) if f['kind'] in ('petname', 'relcity', 'reljob', 'objcol')]

# Facts that are also corrected by saying the new one as if it were the first.
PLAINLY = ('myname', 'myage', 'mycity', 'myjob', 'objloc', 'objcol', 'code', 'meeting')


class World:
    """The people and habits of one conversation."""
    def __init__(self, rng, novel=0.25, real=0.45, low=False):
        """novel: share of invented names; real: share drawn from the long list; low: the user types in lower case."""
        self.r, self.novel, self.real, self.low = rng, novel, real, low
        self.used = set()
        self.third = [self.cased(self.name()) for _ in range(8)]

    def cased(self, t):
        return t.lower() if self.low else t

    def name(self, pet=False):
        r, x = self.r, self.r.random()
        if x < self.novel:
            n = r.choice(SYL1) + ''.join(r.choice(SYL2) for _ in range(r.choice((0, 1, 1, 2)))) + r.choice(SYL3)
            return self.name(pet) if n in HELD_OUT else n
        if x < self.novel + self.real:
            return r.choice(MORE_NAMES)
        return r.choice(PETNAMES if pet and r.random() < 0.7 else NAMES)

    def digits(self, k):
        return ''.join(self.r.choice('0123456789') for _ in range(k))


class Dialogue:
    def __init__(self, rng, plan, novel=0.25, real=0.45, noise=False, sentences=(), plain=False):
        """noise: some users type in lower case, without final punctuation or with a lead-in word;
        sentences: plain sentences that some turns throw in, answered by a general remark;
        plain: only the families PLAIN, each said in one way."""
        self.families = PLAIN if plain else range(len(FAMS))
        self.weights, self.ways = [WEIGHTS[i] for i in self.families], 1 if plain else None
        low = noise and rng.random() < 0.25
        self.nopunct, self.lead = noise and (low or rng.random() < 0.25), noise and rng.random() < 0.3
        self.r, self.w, self.plan, self.sentences = rng, World(rng, novel, real, low), plan, sentences
        self.seg, self.chars = [], 0
        self.told = {}                     # (family index, subject) -> value
        self.last = {}                     # the same -> position of the last mention
        self.fixed = []                    # facts that were corrected

    def add(self, text, kind):
        self.seg.append((text, kind))
        self.chars += len(text)

    def user(self, t):
        if self.lead and self.r.random() < 0.3:
            l = self.r.choice(LEAD)
            t = l + (' ' + t if l[-1] in '.!' else ' ' + lower_start(t))
        if self.nopunct and t[-1] in '.?!':
            t = t[:-1]
        self.add('User: ' + self.w.cased(t) + '\n\nAssistant:', 'u')

    def bot(self, t):
        self.add(' ' + t + '\n\n', 'a')

    def answer(self, before, value, after):
        if before:
            self.add(' ' + before.rstrip(' '), 'a')
        self.add(value if before and before[-1] != ' ' else ' ' + value, 'v')
        self.add(after + '\n\n', 'a')

    def know(self, key, value):
        self.told[key], self.last[key] = value, self.chars
        self.w.used.add(key[1])

    def draw(self):
        """A family and a subject."""
        fi = self.r.choices(self.families, self.weights)[0]
        return fi, FAMS[fi]['subj'](self.w)

    def say(self, key, way, value=''):
        """One of the ways to tell, ask, fix … a fact."""
        f = FAMS[key[0]]
        return fill(self.r.choice(f[way][:self.ways]), key[1], value)

    def new_key(self):
        for _ in range(20):
            key = self.draw()
            if key not in self.told and not (FAMS[key[0]]['share'] == 'name' and key[1] in self.w.used - {''}):
                return key

    def state(self, key, ways):
        """The sentence that states a fresh value of a fact, and that value."""
        f, s = FAMS[key[0]], key[1]
        v = self.w.cased(f['val'](self.w, s))
        return self.say(key, ways, v), v

    def tell(self, key=None, fix=False, bare=0.45):
        r = self.r
        key = key or self.new_key()
        if key is None:
            return
        plainly = FAMS[key[0]]['kind'] in PLAINLY and self.r.random() < 0.3
        t, v = self.state(key, 'fix' if fix and not plainly else 'tell')
        if fix and v == self.told[key]:
            return
        if not fix and r.random() < 0.15:
            return self.tell_more(key, t, v)
        self.user(t)
        x = r.random()
        if x < bare:
            self.bot(r.choice(OKAY))
        elif x < bare + 0.35:
            a = self.say(key, 'ack', v)
            self.bot(a if self.w.low else a[0].upper() + a[1:])
        else:
            self.bot(('Okay, ' if not fix else 'Okay, now ') + lower_start(self.say(key, 'ans', v)))
        self.know(key, v)
        if fix and key not in self.fixed:
            self.fixed.append(key)

    def tell_more(self, key, t, v):
        """Two to four facts in one turn."""
        facts = [(key, v)]
        for _ in range(self.r.choice((1, 1, 2, 3))):
            k = self.new_key()
            if k and k not in [q for q, _ in facts]:
                u, v = self.state(k, 'tell')
                t = t[:-1] + ' and ' + lower_start(u) if self.r.random() < 0.35 else t + ' ' + u
                facts.append((k, v))
        self.user(t)
        self.bot(self.r.choice(OKAY))
        for k, v in facts:
            self.know(k, v)

    def ask(self, key):
        f, s = FAMS[key[0]], key[1]
        self.user(self.say(key, 'ask'))
        self.answer(*split_value(self.r.choice(f['ans']), s, self.told[key]))
        self.last[key] = self.chars

    def known(self):
        return [k for k in self.told if k != 'list']

    def ask_one(self):
        """A question about one fact: a corrected one; or the one longest unmentioned with chance `far`; or a late one."""
        known = sorted(self.known(), key=lambda k: self.last[k])
        if self.fixed and self.r.random() < 0.25:
            return self.ask(self.r.choice(self.fixed))
        far = self.r.random() < self.plan['far']
        self.ask(known[int(len(known) * (self.r.random() ** 2 if far else 1 - self.r.random() ** 3)) - (0 if far else 1)])

    def quiz(self):
        """Many questions in a row, the facts longest unmentioned first, some never told among them."""
        known = sorted(self.known(), key=lambda k: self.last[k])[:self.r.randint(2, 10)]
        known += [k for k in self.r.sample(self.fixed, min(2, len(self.fixed))) if k not in known]
        self.r.shuffle(known)
        for k in known:
            if 'unknown' in self.plan and self.r.random() < 0.22:
                self.ask_unknown()
            self.ask(k)

    def ask_unknown(self):
        """A fact never told; often beside one like it that was told of somebody else."""
        shares = [FAMS[k[0]]['share'] for k in self.known()]
        near = self.r.random() < 0.5
        for _ in range(20):
            key = self.draw()
            if key in self.told or (near and FAMS[key[0]]['share'] not in shares) or (not near and key[1] in self.w.used - {''}):
                continue
            if FAMS[key[0]]['kind'] in ('relname', 'petname') and key[1] in [k[1] for k in self.known() if k[0] == key[0]]:
                continue
            self.user(self.say(key, 'ask'))
            self.add(' ' + self.say(key, 'no'), 'v')
            return self.add('\n\n', 'a')

    def reverse(self):
        """Who lives in Paris?  Needs the way from value to subject."""
        forms = {'percity': ('Who lives in {v}?', 'lives in {v}.'), 'perjob': ('Who is a {v}?', 'is a {v}.'), 'perlike': ('Who likes {v}?', 'likes {v}.')}
        c = [(k, self.told[k], FAMS[k[0]]['kind']) for k in self.known() if FAMS[k[0]]['kind'] in forms]
        if not c:
            return
        k, v, kind = self.r.choice(c)
        if sum(1 for _, x, y in c if x == v and y == kind) > 1:
            return
        self.user(article(forms[kind][0].format(v=v)))
        self.answer('', k[1], ' ' + article(forms[kind][1].format(v=v)))

    def skill(self):
        r, x = self.r, self.r.random()
        if x < 0.3:
            ws = ' '.join(r.sample(ANIMALS + FOODS + COLOURS, r.randint(2, 5)))
            self.user(r.choice(['Repeat: ', 'Say: ', 'Repeat after me: ', 'Please say ']) + ws)
            self.answer('', self.w.cased(ws), '')
        elif x < 0.45:
            ws = r.sample(ANIMALS + COLOURS, r.randint(2, 4))
            self.user('Say it backwards: ' + ' '.join(ws))
            self.answer('', ' '.join(ws[::-1]), '')
        elif x < 0.65:
            a, b = r.randint(0, 9), r.randint(0, 9)
            a, b, q, c = (a, b, 'plus', a + b) if r.random() < 0.5 else (max(a, b), min(a, b), 'minus', abs(a - b))
            self.user(f'What is {a} {q} {b}?')
            self.answer(f'{a} {q} {b} is ', str(c), '.')
        else:
            hero = r.choice(ANIMALS)
            self.user(article(r.choice(['Tell me a story about a ', 'Please tell me a story about a ', 'I want a story about a ']) + hero + '.'))
            self.bot(story(r, hero))

    def shopping(self):
        r = self.r
        if 'list' in self.told and r.random() < 0.6:
            self.user(r.choice(['What is on my shopping list?', 'Read my shopping list.', 'What do I need to buy?', 'What did I want to buy?', 'Tell me my shopping list.']))
            return self.answer('Your list has ', self.told['list'], '.')
        it = r.sample(FOODS + DRINKS, r.randint(2, 4))
        v = self.w.cased(', '.join(it[:-1]) + ' and ' + it[-1])
        self.user(r.choice(['My shopping list is ', 'I need to buy ', 'Put on my list: ', 'My shopping list has ', 'Today I want to buy ']) + v + '.')
        self.bot(r.choice(['I will remember your list.', 'Okay.', 'Noted.']))
        self.told['list'] = v

    def small(self):
        if self.sentences and self.r.random() < 0.3:
            self.user(self.r.choice(self.sentences))
            return self.bot(self.r.choice(REMARK))
        u, b = small_talk(self.r)
        self.user(u)
        self.bot(b)

    def run(self, chars):
        """Goes on until the conversation has that many characters."""
        p = self.plan
        does = dict(tell=self.tell, ask=self.ask_one, fix=lambda: self.tell(self.r.choice(self.known()), True), unknown=self.ask_unknown,
                    small=self.small, skill=self.skill, rev=self.reverse, list=self.shopping, quiz=self.quiz)
        acts = [k for k in p if k != 'far']
        if not self.seg and self.r.random() < 0.3:
            self.small()
        while self.chars < chars:
            a = self.r.choices(acts, [p[k] for k in acts])[0]
            if not self.known() and a in ('ask', 'fix', 'rev', 'quiz'):
                a = 'tell'
            does[a]()
        return self.seg


def lower_start(t):
    """Lower-case a sentence's start unless it is a name."""
    w = t.split()[0].rstrip(",.'s")
    return t if w in NAMES or w in MORE_SET or re.match(r"I\b", t) or not w[1:].islower() or w in CITIES else t[0].lower() + t[1:]


MORE_SET = set(MORE_NAMES) | set(PETNAMES) | set(DAYS) | set(MONTHS)

if __name__ == '__main__':
    import random
    import sys
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    plan = dict(dense=DENSE, busy=BUSY, mixed=MIXED, sparse=SPARSE)[sys.argv[2] if len(sys.argv) > 2 else 'mixed']
    print(''.join(t for t, _ in Dialogue(random.Random(seed), plan, noise=True).run(3500)))
