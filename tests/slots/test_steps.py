"""Steps of programs that grow at random: their paths, and how these are laid out, equal what is slow and obvious."""

from __future__ import annotations

import numpy as np

from spinf_stream.engine.gpu import steps
from spinf_stream.engine.gpu.cache import FIRST, ZERO
from spinf_stream.engine.gpu.slot_gates import automata
from spinf_stream.engine.gpu.slots import up
from spinf_stream.engine.grow import Grown
from spinf_stream.slots.decoding import Below, Decoder
from spinf_stream.slots.program import Program, Wanted

NAME = 1000  # a program's rows have its number times this, and on, for tokens


class Growing(Program):
    """Adds rows below any of its rows; its tokens say which row of which program they are."""

    def __init__(self, number, rng):
        super().__init__([NAME * number + i for i in range(rng.integers(1, 40))], AUTOMATON)
        self.number, self.rng, self.left = number, rng, int(rng.integers(1, 6))
        self._ask(0)

    def feed(self, reads):
        assert len(reads) == len(self.wanted)
        known, self.left = len(self.token), self.left - 1
        for _ in range(self.rng.integers(1, 30) if self.left else 0):
            below = self.rng.integers(max(0, known - 20), len(self.token)) if self.rng.random() < 0.5 else len(self.token) - 1
            self.add(NAME * self.number + len(self.token), int(below))
        self._ask(known)

    def _ask(self, known):
        """Some of the rows added last."""
        some = [r for r in range(known, len(self.token)) if self.rng.random() < 0.6]
        fresh = [*some, len(self.token) - 1] if len(self.token) > known else []
        self.wanted = [Wanted(r, 0, range(self.rng.integers(0, 3))) for r in fresh]


AUTOMATON = automata(60)[0]


class Recording:
    """A grower that says nothing and fails now and then."""

    def __init__(self, check):
        self.check, self.calls, self.steps = check, 0, []

    def grow(self, step):
        self.calls += 1
        if self.calls % 5 == 4:
            raise MemoryError
        self.steps.append(step)
        self.check(step)
        r = len(step.read)
        return Grown(np.zeros((r, 0), np.int32), np.zeros((r, 0)), np.zeros(r), np.zeros(r), np.zeros(len(step.pick)), 0.0)


def grown(seed, check=lambda *_: None):
    """The steps of some programs below three trunks. check: called with the programs and each step."""
    rng = np.random.default_rng(seed)
    programs = [Growing(i, rng) for i in range(12)]
    grower = Recording(lambda step: check(programs, step))
    decoder = Decoder(grower)
    waiting = list(programs)
    while waiting or decoder.live:
        for p in (waiting.pop() for _ in range(min(len(waiting), int(rng.integers(0, 5))))):
            trunk = TRUNKS[p.number % 3]
            decoder.add(None, (0, p.number), Below(trunk, trunk[0]), p)
        free, used = sorted(decoder.free), decoder.used
        try:
            decoder.advance()
        except MemoryError:
            assert sorted(decoder.free) == [*free, *range(used, decoder.used)], "nothing has moved"
    assert sorted(decoder.free) == list(range(decoder.used)) and not decoder.live
    return grower.steps


TRUNKS = [(5,), (64,), (700,)]


def test_every_row_comes_with_its_path():
    for seed in range(8):
        row_of = {}  # token -> own row

        def check(programs, step, row_of=row_of):
            for i, token in enumerate(step.token.tolist()):
                program, row = programs[token // NAME], token % NAME
                path = [p for p in step.path[i].tolist() if p >= 0]
                row_of[token] = path[-1]
                want = []
                while row >= 0:
                    want.insert(0, row_of[NAME * program.number + row])
                    row = program.parent[row]
                assert path == want and step.path[i, : len(path)].tolist() == want, "padding comes behind"
                trunk = step.trunks[step.trunk[i]]
                assert trunk is TRUNKS[program.number % 3] and step.position[i] == trunk[0] + len(path) - 1
            assert (np.diff(step.trunk) >= 0).all()
            numbers = list(dict.fromkeys(t // NAME for t in step.token.tolist()))
            wanted = [(NAME * n + w.row, list(w.picks)) for n in numbers for w in programs[n].wanted]
            picks = np.split(step.pick, step.pick_ptr[1:-1])
            assert [(int(step.token[r]), p.tolist()) for r, p in zip(step.read, picks)] == wanted

        grown(seed, check)


def test_paths_are_laid_out_as_one_by_one():
    several = 0
    for seed in range(20):
        for step in grown(seed):
            got, want = steps.paths(step), slow(step)
            np.testing.assert_array_equal(got.source, want.source)
            np.testing.assert_array_equal(got.first, want.first)
            several += len(step.trunks) > 1 and len(got.source) > 256
    assert several > 20


def slow(step):
    paths = [tuple(p for p in row if p >= 0) for row in step.path.tolist()]
    source, first = [], {}
    for trunk in range(len(step.trunks)):
        own = [p for p, t in zip(paths, step.trunk.tolist()) if t == trunk]
        at = len(source)
        for path in own:
            if any(p[:-1] == path for p in own):
                continue  # a row below it has its path too
            at = up(at, 16)
            if len(path) > 32 or at % 32 + len(path) > 32:
                at = up(at, 64 if len(path) > 32 else 32)
            source += [ZERO] * (at - len(source)) + [p + FIRST for p in path]
            first[path] = at
            at = len(source)
        source += [ZERO] * (up(at, 64) - at)
    below = {p[:-1]: next(q for q in paths if q[:-1] == p[:-1]) for p in paths}  # the first row below

    def lies(path):
        return first[path] if path in first else lies(below[path])

    return steps.Paths(np.array(source), np.array([lies(p) for p in paths]))
