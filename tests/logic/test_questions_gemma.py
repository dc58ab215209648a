"""The compiler with the demo model's own tokenizer: what the peer's reference says of it, and joins on whole articles."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest
from conftest import ROOT
from questions_bpe import texts

sys.path.insert(0, str(ROOT / "bench"))
from job import made_up

from spinf_stream.demo import SAMPLES
from spinf_stream.engine.cache import fetch
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.warnings import warnings


@pytest.fixture(scope="module")
def gemma() -> Encoder:
    return Encoder.from_file(fetch("demo").folder / "tokenizer.json")


def made(encoder: Encoder, *queries: dict[str, Any]) -> QuestionSet:
    return build([Source({"queries": list(queries)})], encoder)


def query(**fields: Any) -> dict[str, Any]:
    return {"id": "a", "template": "\n\nIs it?\nAnswer:{?}", "options": [" Yes", " New York"], **fields}


def test_spellings_of_the_reference(gemma: Encoder) -> None:
    assert texts(made(gemma, query()), 0, gemma) == [[" Yes", " yes", "yes", "Yes", " YES", "YES"], [" New York"]]


@pytest.mark.parametrize("option", ["Yes", " Yes"])
def test_a_template_that_ends_in_a_space_melts_with_either_spelling(gemma: Encoder, option: str) -> None:
    with pytest.raises(QuestionError, match="option_boundary"):
        made(gemma, query(template="Ans: {?}", options=[option]))


def test_the_17th_ending(gemma: Encoder) -> None:
    asked = query(template="\n\nIs it {F}{?}", options=[" Yes"], combinations=[{"F": f"no {i}:"} for i in range(16)] + [{"F": "price "}])
    with pytest.raises(QuestionError) as e:
        made(gemma, asked)
    assert [(p.path, p.reason) for p in e.value.problems] == [("$.queries[0].options[0]", "option_boundary")]
    assert "combination 16" in e.value.problems[0].message


def test_digits_begin_each_other(gemma: Encoder) -> None:
    (w,) = warnings(made(gemma, query(options=[f" {i}" for i in range(1, 11)])))
    assert "options[0] is also the beginning of options[9]" in w.message


def test_the_peers_join(gemma: Encoder) -> None:
    q = made(gemma, query(template="{F}:{?}", combinations=[{"F": " a"}, {"F": "ld"}]), query(id="b"))
    assert q.joins_differ(gemma, "hello wor") == ["a"]
    assert q.joins_differ(gemma, "hello there.") == []


def test_questions_of_a_job_share_their_stems(gemma: Encoder) -> None:
    """A row of the plan for each beginning that its questions have, no more."""
    queries = made_up(articles=1, questions=56, words=1).scoring["queries"]
    q = made(gemma, *queries)
    prompts = [tuple(gemma.encode(query["template"].removesuffix("{?}"))) for query in queries]
    beginnings = {p[:n] for p in prompts for n in range(1, len(p) + 1)}
    assert (q.plan.prompts, sum(s.tokens for s in q.queries), len(q.joins.heads)) == (56, sum(map(len, prompts)), 3)  # Does, Is, Would
    assert q.tokens == len(beginnings) < sum(map(len, prompts)) / 1.5


def test_joins_on_articles_are_what_whole_texts_say(gemma: Encoder) -> None:
    r = random.Random(11)
    heads = ["\n\nIs", " Is it", "s the", "ing", ", and", "'s view", "\n", "\t\tWhat", " —so", "00 people", "!!", "的", "  double", ".com", "</b>", "\r\nHi"]
    fills = [h + " end:" for h in heads]
    q = made(gemma, *(query(id=str(i), template=h + " end:{?}") for i, h in enumerate(heads)))
    lines = [json.loads(line)["text"] for line in (SAMPLES / "articles.jsonl").read_text("utf-8").splitlines()]
    contents = [c for t in lines for n in (len(t), *r.sample(range(1, len(t)), 50)) if (c := t[:n].rstrip())]
    assert len(contents) > 300
    apart, own = gemma.encode_batch([c[-256:] for c in contents]), gemma.encode_batch(fills)
    differing = 0
    for i, fill in enumerate(fills):
        joint = gemma.encode_batch([c[-256:] + fill for c in contents])
        for content, together, before in zip(contents, joint, apart):
            differs = together != before + own[i]
            differing += differs
            assert (str(i) in q.joins_differ(gemma, content)) == differs
    assert differing > 100
