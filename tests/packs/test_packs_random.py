"""300 random packs: the compiled evaluator equals the plain one bit for bit, and each broken pack is refused at its fault."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec
import numpy as np
import pack_plain as plain
import pytest
from pack_random import BREAKS, WRONG, broken, random_answers, random_pack

from spinf_stream.packs.decide import interpolate
from spinf_stream.packs.evaluate import Evaluator, rounded
from spinf_stream.packs.file import from_doc, loads
from spinf_stream.packs.problems import PackError
from spinf_stream.schema import PackScore

VALID = 130
BROKEN = 170


@pytest.mark.parametrize("seed", range(VALID))
def test_a_valid_pack_evaluates_as_the_plain_loop_does(seed: int) -> None:
    rng = random.Random(seed)
    doc = random_pack(rng)
    pack = from_doc(doc)
    assert pack.notes == () and pack.calibrated
    ev = Evaluator(pack, models=("DEMO",))
    articles = [random_answers(rng, doc) for _ in range(4)]
    p = np.array([flat for flat, _ in articles])
    logprob = np.array([[math.log(x) - 1.5 for x in row] for row in p.tolist()])
    entries = ev.evaluate_all(p, logprob)
    for (_, by_place), row, got in zip(articles, range(4), entries):
        answers = by_place if doc["answers"] == "p" else _softmax_of(doc, logprob[row].tolist())
        if doc["answers"] == "p":
            answers = {k: [round(x, 6) for x in v] for k, v in answers.items()}
        values, z, macros, scores = plain.figures(doc, answers)
        figures = ev.figures(ev.answers(p[row : row + 1], logprob[row : row + 1]))
        assert figures.values[0].tolist() == values
        assert figures.z[0].tolist() == z
        assert figures.macros[0].tolist() == list(macros.values())
        assert figures.scores[0].tolist() == list(scores.values())
        assert {k: got[k] for k in ("categories", "decision")} == plain.entry(doc, answers)
        assert got["calibrated"] is True and "warning" not in got
        assert got == ev.evaluate(p[row], logprob[row])
        assert msgspec.convert(got, PackScore) == got  # as `spinf-stream schema` says
    untold = Evaluator(pack, models=("other",)).evaluate(p[0], logprob[0])
    assert untold["decision"] is None and msgspec.convert(untold, PackScore) == untold


def _softmax_of(doc: dict[str, Any], flat: list[float]) -> plain.Answers:
    from pack_random import combinations

    out: plain.Answers = {}
    at = 0
    for q in doc["scoring"]["queries"]:
        for values in combinations(q):
            row = flat[at : at + len(q["options"])]
            total = plain.logsumexp(row)
            out[q["id"], values.get("F")] = [math.exp(x - total) for x in row]
            at += len(row)
    return out


@pytest.mark.parametrize("seed", range(BROKEN))
def test_a_broken_pack_is_refused_with_the_path_of_its_fault(seed: int) -> None:
    rng = random.Random(10_000 + seed)
    doc, path = broken(rng, random_pack(rng), BREAKS[seed % len(BREAKS)])
    with pytest.raises(PackError) as e:
        from_doc(doc)
    paths = [p.path for p in e.value.problems]
    assert any(p == path or p.startswith((path + ".", path + "[")) for p in paths), (path, paths)


def test_two_faults_are_told_together() -> None:
    rng = random.Random(7)
    doc = random_pack(rng)
    del doc["reads"][0]["sd"]
    doc["contexts"]["plain"] = "nothing"
    doc["decision"]["mode"] = 4
    with pytest.raises(PackError) as e:
        from_doc(doc)
    assert {p.path for p in e.value.problems} >= {"$.reads[0].sd", "$.contexts.plain", "$.decision.mode"}


def test_any_value_anywhere_is_accepted_or_refused_but_never_a_crash() -> None:
    """W29: 1,000 packs with one random node replaced by a random value."""
    refused = 0
    for seed in range(1_000):
        rng = random.Random(20_000 + seed)
        doc = random_pack(rng)
        nodes = list(_containers(doc))
        at = rng.choice(nodes)
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        at[key] = rng.choice(WRONG)
        try:
            pack = loads(json.dumps(doc).encode())
        except PackError as e:
            refused += 1
            assert e.problems and all(p.path.startswith("$") for p in e.problems)
        else:
            flat = np.full((1, pack.options), 0.5)
            Evaluator(pack).evaluate_all(flat, np.log(flat))
            pack.presentation(parameters=dict.fromkeys(pack.parameters, "here"))
    assert refused > 750


def _containers(value: Any) -> Any:
    if isinstance(value, dict | list) and value:
        yield value
        for v in value.values() if isinstance(value, dict) else value:
            yield from _containers(v)


def test_interpolation_is_numpys() -> None:
    rng = random.Random(4)
    for _ in range(3_000):
        xs = sorted(rng.choice([0.0, 0.5, rng.random()]) for _ in range(rng.randint(2, 9)))
        ys = sorted(rng.random() for _ in xs)
        x = rng.choice([*xs, rng.uniform(-0.5, 1.5)])
        assert interpolate(x, xs, ys) == float(np.interp(x, xs, ys))


def test_rounding_is_pythons() -> None:
    rng = random.Random(3)
    ties = [k / 2**n for n in range(7, 21) for k in (1, 3, 5, 77)] + [(2 * k + 1) * 5e-7 for k in range(4_000)]
    values = np.array([*ties, *(rng.random() ** 5 for _ in range(20_000))])[None]
    assert rounded(values)[0].tolist() == [round(v, 6) for v in values[0].tolist()]
