"""The read plan: what a compiled question set asks of a model, as flat arrays.

A *plan* is a forest of token branches below any trunk (BOS + content) and the list of next-token reads in it.
It is compiled once, shared by every article, and never holds text: all per-pass work on it is numpy.

Walk of one answer. A *prompt* is one filled template. Its tokens are a path in the trie. An *option* has one or more
*variants* (case forms), a variant is one or more *steps*, a step is one candidate token at one read:

    log P(variant) = sum over its steps of log softmax(logits at the read)[token]   (+ log P(end) where the query says `ends`)
    log P(option)  = logsumexp over its variants
    p              = softmax of log P(option) over the prompt's options
    residual       = max(0, 1 - sum of exp log P(option))

Multi-token options put their lead-in tokens (all but the last; all of them where `ends`) into the trie as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Plan:
    """N trie nodes in pre-order, R reads, C candidates, V variants, O options, Q prompts.

    Node i's subtree is nodes i .. end[i]-1; node j is an ancestor-or-self of i iff j <= i < end[j].
    Its position id below a trunk of P tokens is P + depth[i].
    """

    token: I32  # [N] token ids
    parent: I32  # [N] parent node, -1 = the trunk's last token
    depth: I32  # [N] 0 for the first token after the trunk
    end: I32  # [N] end of the node's subtree, exclusive

    # a node that is asked with and without `residual: false` is two reads: whichever a prompt has, its neighbours never change it
    read_node: I32  # [R] node whose next-token distribution is read, -1 = the trunk's last token; ascending
    read_norm: Bool  # [R] the log-sum-exp over the whole vocabulary is needed; False before True at the same node
    read_end: Bool  # [R] the mass of tokens that start with a letter or digit is needed (`ends`)

    cand_ptr: I32  # [R+1] candidates of read r are cand_ptr[r] .. cand_ptr[r+1]-1
    cand_token: I32  # [C] distinct within a read, ascending

    step_ptr: I32  # [V+1] steps of variant v, each at least one
    step_cand: I32  # [S] index into C
    variant_end: I32  # [V] read whose end mass multiplies the variant, -1 = none
    variant_option: I32  # [V] non-decreasing
    option_prompt: I32  # [O] non-decreasing
    prompt_norm: Bool  # [Q] False = `residual: false`: p is the softmax over candidates, logprob and residual are null

    @property
    def nodes(self) -> int:
        return len(self.token)

    @property
    def reads(self) -> int:
        return len(self.read_node)

    @property
    def options(self) -> int:
        return len(self.option_prompt)

    @property
    def prompts(self) -> int:
        return len(self.prompt_norm)
