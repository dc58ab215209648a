"""Copied text: what is computed ahead saves steps and changes no answer."""

from __future__ import annotations

import numpy as np
from slot_parts import TEXTS, Parts

from spinf_stream.engine.gpu.slot_gates import automata
from spinf_stream.engine.pending import programs
from spinf_stream.slots import copying
from spinf_stream.slots.copying import Copy, CopyText, Pieces
from spinf_stream.slots.plan import BEAM, MIN_P, REL_P, SLOTS
from spinf_stream.slots.program import Read

VOCAB = 60
STREAM = [2, 11, 5, 30, 8, 2, 11, 5, 40, -1, 2, 12, 6, 7, 9, 5, 30, 13, -1]
STEM = 1


def run(likely):
    """(endings, rows, steps) of a model whose next token depends on the last one alone."""
    n = len(STREAM)
    copy = Copy(np.array(STREAM), np.array([t if t >= 0 and t % 2 == 0 else -1 for t in STREAM]), np.zeros(n, np.int32), np.zeros(n, bool))
    program = CopyText([STEM], 6, Pieces(automata(VOCAB)[1], copy))
    steps = 0
    while program.wanted:
        program.feed([Read((), (), 0.1, 0.0, [likely[program.token[w.row], t] for t in w.picks]) for w in program.wanted])
        steps += 1
    return sorted(program.endings), len(program.token) - 1, steps


def test_what_is_computed_ahead_changes_no_answer(monkeypatch):
    total = np.zeros((3, 2), int)
    for seed in range(20):
        p = np.random.default_rng(seed).dirichlet(np.full(VOCAB, 0.5), VOCAB)
        p[[2, 11, 5], [11, 5, 30]] = 0.7  # a name that is likely once it has begun
        got = []
        for ahead in (0, copying.AHEAD, 6):
            with monkeypatch.context() as m:
                m.setattr(copying, "AHEAD", ahead)
                got.append(run(np.log(np.maximum(p, 1e-9))))
        assert got[0][0] == got[1][0] == got[2][0] and len(got[0][0]) > 3
        total += [g[1:] for g in got]
    rows, steps = total.T.tolist()
    assert rows[0] < rows[1] < rows[2] and steps[0] > steps[1] >= steps[2], (rows, steps)


def test_slots_that_may_copy_the_same_share_what_is_made_of_it(tmp_path):
    asked = [(f"{kind}{i}", f"\n\nQuestion {i}:{{{kind}}}") for kind in "n$*" for i in range(3)]
    parts = Parts(tmp_path, "gemma3", [{"id": name, "template": template, "mode": "copy_only"} for name, template in asked])
    batch = parts.batch(TEXTS, 0)
    made = [programs(parts.slots.plan, batch, tree) for tree in range(len(TEXTS))]
    shared = [[id(p.pieces if isinstance(p, CopyText) else p.spellings) for p in of_tree] for of_tree in made]
    assert all(len(set(of_tree[i : i + 3])) == 1 for of_tree in shared for i in (0, 3, 6))
    assert len({i for of_tree in shared for i in of_tree}) == 3 * len(TEXTS)


def test_what_is_left_out_is_in_the_fingerprint():
    """Whoever changes one of these changes answers: FIRST_P came with others for copied numbers under the same fingerprint."""
    assert (SLOTS, copying.BEGINNINGS, copying.FIRST_P, BEAM, MIN_P, REL_P) == ("slots/3", 16, 0.1, 6, 0.002, 0.02)
