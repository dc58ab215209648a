"""The head: candidate logits and a streaming log-sum-exp, never the whole matrix of logits.

A read costs its candidates' rows of the embedding; where its log-sum-exp is needed, blocks of the vocabulary pass by and
only their sums stay. Block sums are float32, their combination float64, in ascending order.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from spinf_stream.questions.plan import F64, I32, I64, Bool


class Head:
    """embed [vocab, hidden]; starts_alnum [vocab] marks tokens whose text begins with a letter or digit."""

    def __init__(self, embed: torch.Tensor, softcap: float | None, starts_alnum: NDArray[np.bool_], block: int = 8192) -> None:
        self.embed, self.softcap, self.block = embed, softcap, block
        quiet = np.zeros(embed.shape[0], np.bool_)  # rows beyond the tokenizer's own are never letters
        quiet[: len(starts_alnum)] = starts_alnum[: embed.shape[0]]
        self.other = torch.from_numpy(~quiet).to(embed.device)

    def read(self, hidden: torch.Tensor, norm: Bool, end: Bool, cand_ptr: I64, cand_token: I32) -> tuple[F64, F64]:
        """hidden [r, H] after the final norm. Returns cand [c], end [r] as executor.Fetched defines them."""
        device = hidden.device
        of_read = torch.from_numpy(np.repeat(np.arange(len(norm)), np.diff(cand_ptr))).to(device)
        rows = self.embed[torch.from_numpy(cand_token.astype(np.int64)).to(device)].to(hidden.dtype)
        cand = self._cap(torch.einsum("ch,ch->c", hidden[of_read], rows).float()).double()
        total = torch.zeros(len(norm), dtype=torch.float64, device=device)
        quiet = torch.zeros(len(norm), dtype=torch.float64, device=device)
        need = torch.from_numpy(np.flatnonzero(norm | end)).to(device)
        if len(need):
            wants = torch.from_numpy(end[norm | end]).to(device)
            total[need], quiet[need] = self._sums(hidden[need], wants)
        normed = torch.from_numpy(norm.copy()).to(device)
        cand = cand - torch.where(normed, total, 0.0)[of_read]
        return cand.cpu().numpy(), quiet.cpu().numpy()

    def _sums(self, hidden: torch.Tensor, wants_end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """log-sum-exp over the vocabulary [r], and log P(end) [r] (0 where not wanted)."""
        parts: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        any_end = bool(wants_end.any())
        for at in range(0, self.embed.shape[0], self.block):
            logits = self._cap(hidden @ self.embed[at : at + self.block].T.to(hidden.dtype)).float()  # [r, block]
            parts.append(torch.logsumexp(logits, -1).double())
            if any_end:
                hushed = logits[wants_end].masked_fill(~self.other[at : at + self.block], -torch.inf)
                others.append(torch.logsumexp(hushed, -1).double())
        total = torch.logsumexp(torch.stack(parts), 0)
        quiet = torch.zeros_like(total)
        if any_end:
            quiet[wants_end] = torch.logsumexp(torch.stack(others), 0) - total[wants_end]
        return total, quiet

    def _cap(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
