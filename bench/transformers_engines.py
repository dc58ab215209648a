"""What most would reach for, on plain `transformers` and the same weights: the CPU peers of the headline bench.

    transformers                one forward a question: BOS + article + template, logits_to_keep=1
    transformers-prefix-cache   the article once, then the cache for each question in turn
    transformers-prefix-batch   the article once, then all questions as one padded batch on the expanded cache

Each gives log-probabilities [articles, prompts, options] of single-token options, so that the runner can compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class Asked(NamedTuple):
    """A job as token ids."""

    trunks: list[list[int]]  # BOS + article
    prompts: list[list[int]]  # filled templates
    options: list[list[list[int]]]  # prompt -> option -> token ids of its single-token variants


def one_at_a_time(model: Any, asked: Asked) -> NDArray[np.float64]:
    def article(trunk: list[int]) -> list[torch.Tensor]:
        return [model(torch.tensor([trunk + prompt]), logits_to_keep=1).logits[0, -1] for prompt in asked.prompts]

    return _all(asked, article)


def prefix_cache(model: Any, asked: Asked) -> NDArray[np.float64]:
    def article(trunk: list[int]) -> list[torch.Tensor]:
        cache = model(torch.tensor([trunk]), use_cache=True, logits_to_keep=1).past_key_values
        rows = []
        for prompt in asked.prompts:
            rows.append(model(torch.tensor([prompt]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1])
            cache.crop(-len(prompt))
        return rows

    return _all(asked, article)


def prefix_batch(model: Any, asked: Asked) -> NDArray[np.float64]:
    """Right-padded suffixes, so that positions stay true; only each prompt's last row goes through the head."""
    longest = max(map(len, asked.prompts))
    ids = torch.tensor([p + [0] * (longest - len(p)) for p in asked.prompts])
    last = torch.tensor([len(p) - 1 for p in asked.prompts])

    def article(trunk: list[int]) -> list[torch.Tensor]:
        cache = model(torch.tensor([trunk]), use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(ids))
        position = torch.arange(len(trunk), len(trunk) + longest)[None].expand(len(ids), -1)
        hidden = model.model(ids, past_key_values=cache, use_cache=True, position_ids=position).last_hidden_state
        return list(model.lm_head(hidden[torch.arange(len(ids)), last]))

    return _all(asked, article)


def _all(asked: Asked, article: Callable[[list[int]], Sequence[torch.Tensor]]) -> NDArray[np.float64]:
    out = []
    with torch.inference_mode():
        for trunk in asked.trunks:
            rows = [r.double().log_softmax(-1) for r in article(trunk)]
            out.append([[row[v].logsumexp(0).item() for v in options] for row, options in zip(rows, asked.options)])
    return np.array(out)


ENGINES: dict[str, Callable[[Any, Asked], NDArray[np.float64]]] = {
    "transformers": one_at_a_time,
    "transformers-prefix-cache": prefix_cache,
    "transformers-prefix-batch": prefix_batch,
}
