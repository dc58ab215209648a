"""What tokens do in each state, against the definition over strings."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tiny import byte_level_tokenizer

from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.slots import grammar
from spinf_stream.slots.automaton import NEVER, Automaton, Vocabulary, begun, of_numbers, of_text, vocabulary
from spinf_stream.slots.candidates import bare, spaced
from spinf_stream.slots.candidates import of_text as text_candidates
from spinf_stream.slots.head import RUN, best
from spinf_stream.slots.regular import DEAD

TEXTS = ["", *(chr(c) for c in range(32, 127)), "\n", "\n\n", ".\n", " km", " k", "m", "km", "mm.", " kkm", '"', '."', '",', "”", "a”", " \"", " 5", "50", ",0",
         "00", " million", "bn", "$5", "US", " US", "EUR", "5.", "%)", "\u00a0", "−", "<b>", "<|x|>", "<s>", "aab", "aa", "ab", " the", "the"]  # fmt: skip
SPECIAL = TEXTS.index("<s>")


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return Vocabulary(tuple(TEXTS), len(TEXTS) + 5, frozenset({SPECIAL, TEXTS.index("<|x|>")}), frozenset({SPECIAL}))


@pytest.mark.parametrize("kind", ["n", "$"])
def test_numbers(words, kind):
    a, dfa = of_numbers(kind, words), grammar.automaton(kind)
    for state in range(len(dfa.next)):
        assert a.final[state] == dfa.final[state] and a.open[state] == any(a.step[state] >= 0)
        for token, text in enumerate(TEXTS):
            after = dfa.run(text, state) if text and token not in words.banned else DEAD
            assert a.after(state, token) == (NEVER if after == DEAD else after), (state, text)
    np.testing.assert_array_equal(a.first, a.step != NEVER)
    marks = {words.texts[t] for t in a.token[a.second[dfa.run("5")]]}
    assert marks == {" ", ",", ".", "'", "\u00a0"} - ({"\u00a0"} if "\u00a0" not in TEXTS else set())
    assert not a.second[dfa.run("5,")].any()


@pytest.mark.parametrize("stop", ["", '"', "'", " km", "aab", ".", " the", ".."])
def test_text(words, stop):
    a = of_text(stop, words)
    rng = random.Random(3)
    paths = [[]] + [[rng.randrange(len(TEXTS)) for _ in range(rng.randrange(1, 5))] for _ in range(400)]
    checked = 0
    for path in paths:
        state, said = 0, ""
        for token in path:
            if state != NEVER:
                state = a.after(state, token)
                said += TEXTS[token]
        if state == NEVER:
            continue
        checked += 1
        plain = said.replace("”", '"') if '"' in stop else said.replace("’", "'") if "'" in stop else said
        assert a.open[state] == (not stop or stop not in plain)
        if not a.open[state]:
            continue
        pending = max((n for n in range(1, len(stop)) if plain.endswith(stop[:n])), default=0)
        assert a.taken[state] == pending == begun(said, stop)
        for token, text in enumerate(TEXTS):
            hard = token in words.ends or "\n" in text
            folded = text.replace("”", '"') if '"' in stop else text
            at = (plain[len(plain) - pending :] + folded).find(stop) if stop else -1
            whole = at == 0 if pending else at >= 0 and not folded[:at].strip()
            whole = whole and bool(text) and not hard and token not in words.banned
            assert bool(a.first[state, token]) == hard and bool(a.second[state, token]) == whole, (said, text)
            assert (a.after(state, token) == NEVER) == (hard or whole or not text or token in words.banned)
    assert checked > 150 and (a.step[:, len(TEXTS) :] == NEVER).all()


def test_a_stop_text_that_is_too_long_is_refused(words):
    with pytest.raises(ValueError, match="65 characters"):
        of_text("x" * 65, words)


def test_the_vocabulary_of_a_tokenizer():
    encoder = Encoder(byte_level_tokenizer().to_str().encode(), (2,), 384)
    words = vocabulary(encoder, (1,))
    assert words.ends == {1, encoder.token_id("<end_of_turn>")} and words.banned >= {0, 1, 2, 3} and words.size == 384
    assert words.texts[encoder.encode(" sport")[0]] == " sport" and len(words.texts) == encoder.tokens
    assert encoder.special() == words.banned and encoder.token_id("<nothing>") is None


def test_an_answer_begins_at_a_word(words):
    tokens = {t: i for i, t in reversed(list(enumerate(TEXTS)))}

    class Pieces:
        def encode_batch(self, lines):
            return [[tokens[c] if c != " " else tokens[" "] for c in line] for line in lines]

    forms = spaced(words)
    assert forms.with_[tokens["the"]] == tokens[" the"] and forms.without[tokens[" k"]] == tokens["k"]
    entry = text_candidates("a (b)\n\n  5", Pieces(), words, forms, bare=False)
    assert "".join(TEXTS[t] if t >= 0 else "|" for t in entry.token) == " a (b)| 5|"
    assert [TEXTS[t] if t >= 0 else None for t in entry.link] == [" ", None, " ", None, None, None, None, " ", None, None]
    close = text_candidates("a (b)\n\n  5", Pieces(), words, forms, bare=True)
    assert [TEXTS[t] if t >= 0 else None for t in close.link] == [None, "a", None, None, "b", None, None, None, "5", None]
    assert bare("Paid: ") and bare('He said "') and bare("($") and not bare("Paid:") and not bare("x")


def test_the_best_of_a_row_are_in_order_and_ties_go_by_token():
    import torch

    values = torch.tensor([[1.0, 3.0, 3.0, -torch.inf, 2.0, 3.0]])
    value, index = best(values, 4)
    assert index.tolist() == [[1, 2, 5, 4]] and value.tolist() == [[3, 3, 3, 2]]
    assert best(values, 9)[1].shape == (1, 6) and RUN > 1
    assert best(torch.tensor([[1.0, 3.0, 3.0, 3.0, 2.0]]), 2)[1].tolist() == [[1, 2]], "a tie at the cut"
    assert best(values, 0)[1].shape == (1, 0)
    many = torch.from_numpy(np.random.default_rng(0).integers(0, 5, (50, 700)).astype(np.float64))
    many[many == 4] = -torch.inf
    want = torch.from_numpy(np.argsort(-many.numpy(), axis=1, kind="stable"))
    for k in (1, 6, 40, 300, 700):
        value, index = best(many, k)
        assert torch.equal(index, want[:, :k]) and torch.equal(value, many.gather(1, index)), k


@pytest.mark.parametrize("few", [True, False], ids=["numbers", "text"])
def test_what_is_read_does_not_depend_on_how_much_a_neighbour_wants(few):
    """A searched slot reads 6, beside a sampled one all read 40. Logits of a few values: whole runs are equal."""
    import torch

    from spinf_stream.engine.grow import Step
    from spinf_stream.slots.head import SlotHead

    rng = np.random.default_rng(1)
    size, rows = 9_000, 20
    embed = torch.from_numpy(rng.integers(-1, 2, (size, 3)).astype(np.float32))
    hidden = torch.from_numpy(rng.integers(-1, 2, (rows, 3)).astype(np.float32))
    token = np.arange(0, size, 11 if few else 1, dtype=np.int32)
    after = np.where(rng.random((1, len(token))) < 0.4, NEVER, 0).astype(np.int16)
    none, set_ = np.zeros(0, np.int32), after != NEVER
    a = Automaton(token, after, np.ones(1, bool), np.ones(1, bool), few, set_, set_, np.zeros(1, np.int32))
    zeros = np.zeros(rows, np.int32)
    step = Step((), none, none, none, none, none, np.arange(rows), (a,), zeros, zeros, np.zeros(rows + 1, np.int64), none, 6)
    head = SlotHead(embed, None)
    six, forty = head.read(hidden, step), head.read(hidden, step._replace(top=40))
    assert np.array_equal(six.token, forty.token[:, :6]) and np.array_equal(six.logprob, forty.logprob[:, :6])
    plain = (hidden @ embed.T).numpy()[:, token[set_[0]]]
    order = np.argsort(-plain, axis=1, kind="stable")
    assert np.array_equal(forty.token, token[set_[0]][order[:, :40]])
    assert (np.sort(plain)[:, -6] == np.sort(plain)[:, -7]).all(), "every row has a tie at the cut"


def test_a_head_over_a_large_vocabulary_finds_what_a_plain_one_finds():
    import torch

    from spinf_stream.engine.grow import Step
    from spinf_stream.slots.head import SlotHead

    rng = np.random.default_rng(0)
    size, rows = 20_000, 150
    embed, hidden = (torch.from_numpy(rng.normal(size=(n, 8)).astype(np.float32)) for n in (size, rows))
    usable = np.zeros((2, size), np.int16)
    usable[0, rng.choice(size, 9000, replace=False)] = NEVER
    first, second = rng.random((2, size)) < 0.01, rng.random((2, size)) < 0.001
    a = Automaton(np.arange(size, dtype=np.int32), usable, np.ones(2, bool), np.ones(2, bool), False, first, second, np.zeros(2, np.int32))
    state = rng.integers(0, 2, rows).astype(np.int32)
    pick = rng.integers(0, size, 2 * rows).astype(np.int32)
    none = np.zeros(0, np.int32)
    step = Step((), none, none, none, none, none, np.arange(rows), (a,), np.zeros(rows, np.int32), state, np.arange(rows + 1) * 2, pick, 6)
    got = SlotHead(embed, 30.0).read(hidden, step)
    plain = torch.log_softmax((30 * torch.tanh(hidden @ embed.T / 30)).double(), -1).numpy()
    for r in range(rows):
        order = [t for t in np.argsort(-plain[r], kind="stable") if usable[state[r], t] != NEVER][:6]
        assert got.token[r].tolist() == order
        np.testing.assert_allclose(got.logprob[r], plain[r, order], atol=1e-5)
        np.testing.assert_allclose(got.pick[2 * r : 2 * r + 2], plain[r, pick[2 * r : 2 * r + 2]], atol=1e-5)
        np.testing.assert_allclose(got.first[r], np.exp(plain[r, first[state[r]]]).sum(), atol=1e-6)
        np.testing.assert_allclose(got.second[r], np.exp(plain[r, second[state[r]]]).sum(), atol=1e-6)
