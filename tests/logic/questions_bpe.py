"""A tokenizer for question tests whose every merge is known: like Gemma's, spaces are part of words and nothing is
split beforehand, so that merges may cross any join."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers

from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.problems import Problem, QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.spec import LIMITS, Limits

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
WORDS = (
    " yes", " Yes", " YES", "yes", "Yes", " no", " No", "NO", " New", " York", " low", " lower", "world", "wor", " is", " the",
    " oil", " gas", "Answer:", "Is", "\n\n", "end1", "ice y",
)  # fmt: skip


def encoder(words: Sequence[str] = WORDS) -> Encoder:
    """Each word is built from its left, character by character; earlier words merge first."""
    vocab = {t: i for i, t in enumerate((*SPECIAL, *(f"<0x{b:02X}>" for b in range(256))))}
    for char in ("▁", "\n", *string.ascii_letters, *string.digits, *string.punctuation, *"".join(words).replace(" ", "")):
        vocab.setdefault(char, len(vocab))
    merges: dict[tuple[str, str], None] = {}
    for word in (w.replace(" ", "▁") for w in words):
        for i in range(1, len(word)):
            merges[word[:i], word[i]] = None
            vocab.setdefault(word[: i + 1], len(vocab))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=list(merges), byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.add_special_tokens(list(SPECIAL))
    return Encoder(tok.to_str().encode(), bos=(vocab["<bos>"],))


ENCODER = encoder()


def compiled(*queries: dict[str, Any], limits: Limits = LIMITS, **file: Any) -> QuestionSet:
    return build([Source({"queries": list(queries), **file})], ENCODER, limits)


def problems(raw: object, limits: Limits = LIMITS, **source: Any) -> tuple[Problem, ...]:
    """Every problem of a scoring object; () when it compiles."""
    try:
        build([Source(raw, **source)], ENCODER, limits)
    except QuestionError as e:
        return e.problems
    return ()


def texts(questions: QuestionSet, prompt: int, encoder: Encoder = ENCODER) -> list[list[str]]:
    """The variants of each of a prompt's options as text, read back from the plan."""
    plan = questions.plan
    out: dict[int, list[str]] = {o: [] for o in range(plan.options) if plan.option_prompt[o] == prompt}
    for v, option in enumerate(plan.variant_option.tolist()):
        if option in out:
            steps = plan.step_cand[plan.step_ptr[v] : plan.step_ptr[v + 1]]
            out[option].append("".join(encoder.token_text(t) for t in plan.cand_token[steps].tolist()))
    return list(out.values())


def path(questions: QuestionSet, node: int) -> list[int]:
    """Token ids from the trunk to a node."""
    ids: list[int] = []
    while node >= 0:
        ids.append(int(questions.plan.token[node]))
        node = int(questions.plan.parent[node])
    return ids[::-1]
