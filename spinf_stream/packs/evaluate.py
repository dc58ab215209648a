"""A pack bound to a context and a served model: the option probabilities of an article in, its entry out.

Entry: {id, version, digest, context, calibrated, categories, decision}, and `warning` where a pack that could judge does
not. `calibrated: false` (a draft, or constants fitted on another model) goes with null categories and a null decision:
a number that looks like a probability and is none is worse than no number.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.packs.decide import DIGITS, Overrides, judge, sigmoid
from spinf_stream.packs.file import Pack
from spinf_stream.packs.read_plan import Groups, compile_reads, exp
from spinf_stream.questions.plan import F64


class Figures(NamedTuple):
    """A articles, full precision, file order."""

    values: F64  # [A, reads]
    z: F64  # [A, reads]
    macros: F64  # [A, categories]
    scores: F64  # [A, categories]


class Evaluator:
    """Compiled once for a pack; `models` are the names of the served model (None = take the pack's word for it).

    Thread-safe: nothing changes after construction.
    """

    def __init__(
        self, pack: Pack, context: str | None = None, models: Collection[str] | None = None, change: Overrides | None = None
    ) -> None:  # fmt: skip
        self.pack = pack
        self.context = pack.default_context if context is None else context
        self.change = change or Overrides()
        self.warning: str | None = None
        self.judges = pack.calibrated
        if pack.calibrated and models is not None and pack.model.casefold() not in {m.casefold() for m in models}:
            self.judges = False
            self.warning = f"calibrated for the model {pack.model}, which is not the one that answered: categories and decision are null"
        fitted_in = self._fitted_in()
        if self.judges and fitted_in not in (None, self.context):
            self.warning = f"calibrated in the context {fitted_in}, asked in {self.context}: its scores may be off"
        self.plan = compile_reads(pack)
        self._prompts = Groups.from_sizes([len(p.options) for p in pack.prompts])
        self._platt = [c.platt or (1.0, 0.0) for c in pack.categories.values()]

    def _fitted_in(self) -> str | None:
        """The context our `calibrate` fitted the constants in; the peer's packs do not say."""
        noted = self.pack.doc.get("calibration")
        context = noted.get("context") if isinstance(noted, dict) else None
        return context if isinstance(context, str) else None

    def evaluate(self, p: F64, logprob: F64) -> dict[str, Any]:
        """One article: arrays [options] in pack order, as questions/readout.Read has them."""
        return self.evaluate_all(p[None], logprob[None])[0]

    def evaluate_all(self, p: F64, logprob: F64) -> list[dict[str, Any]]:
        """[A, options] each. Raises ValueError where a probability is missing or not finite."""
        if not self.judges:
            return [self._entry(None, None) for _ in range(len(p))]
        f = self.figures(self.answers(p, logprob))
        rows = zip(f.scores.tolist(), f.macros.tolist(), f.z.tolist())
        return [self._entry(*judge(self.pack, *row, self.change)) for row in rows]

    def answers(self, p: F64, logprob: F64) -> F64:
        """What the reads see: rounded p, or the softmax of the log-probabilities in full precision.

        A `residual: false` question has no log-probability over the vocabulary (NaN): its p is that softmax already.
        """
        if p.shape != logprob.shape or p.shape[1] != self.pack.options:
            raise ValueError(f"{self.pack.label} has {self.pack.options} options, not {p.shape[1]} and {logprob.shape[1]}")
        if not np.isfinite(p).all():
            column = int(np.flatnonzero(~np.isfinite(p).all(0))[0])
            query = next(q for q in reversed(self.pack.prompts) if q.first <= column).query
            raise ValueError(f"{self.pack.label}: the query {query!r} has a probability that is not finite")
        if self.pack.answers == "p":
            return rounded(p)
        total = self._prompts.logsumexp(np.where(np.isnan(logprob), 0.0, logprob))
        share = exp(np.where(np.isnan(logprob), 0.0, logprob) - total[:, self._prompts.of])
        return np.where(np.isnan(logprob), p, share)

    def figures(self, answers: F64) -> Figures:
        """[A, options] as the reads see them."""
        values = self.plan.values(answers)
        z = self.plan.z(values)
        macros = self.plan.macros(z)
        scores = np.empty_like(macros)
        for c, (a, b) in enumerate(self._platt):
            scores[:, c] = [sigmoid(a * m + b) for m in macros[:, c].tolist()]
        return Figures(values, z, macros, scores)

    def raw(self, p: F64) -> F64:
        """[A, options] -> [A, categories]: the model's own probabilities, which need no fitted constant."""
        return self.plan.raw(p)

    def _entry(self, categories: dict[str, Any] | None, decision: dict[str, Any] | None) -> dict[str, Any]:
        entry = {
            "id": self.pack.id, "version": self.pack.version, "digest": self.pack.digest, "context": self.context,
            "calibrated": self.judges, "categories": categories, "decision": decision,
        }  # fmt: skip
        if self.warning:
            entry["warning"] = self.warning
        return entry


def rounded(p: F64) -> F64:
    """round(p, 6) as Python rounds, to the nearest decimal, at numpy's speed.

    Scaling by 1e6 and back finds the same double except within rounding error of a tie, where Python's own decides.
    """
    scaled = p * 10.0**DIGITS
    out = np.rint(scaled) / 10.0**DIGITS
    for at in zip(*np.nonzero(np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < 1e-6)):
        out[at] = round(float(p[at]), DIGITS)
    return out
