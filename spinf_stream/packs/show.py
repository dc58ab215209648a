"""A pack for a person to read."""

from __future__ import annotations

from collections import Counter

from spinf_stream.packs.file import Pack


def show_lines(pack: Pack, questions: bool = False) -> list[str]:
    out = [
        f"{pack.label}  {pack.digest}" + (", sealed" if pack.sealed else ", not sealed: nothing would tell an edit (`spinf-stream packs seal FILE`)"),
        f"constants: fitted on {pack.model}" if pack.calibrated else "constants: none yet, a draft: it asks and does not judge",
        f"answers: {pack.answers}; case rule: {'any case counts' if pack.case_insensitive else 'as written'}",
        f"asks: {len(pack.questions)} queries, {len(pack.prompts)} prompts, {pack.options} options, {len(pack.slots)} extraction queries",
    ]
    for name, template in pack.contexts.items():
        default = " (default)" if name == pack.default_context else ""
        out.append(f"context {name}{default}: {template!r}")
    for name, p in pack.parameters.items():
        rule = f"default {p.default!r}" if p.default is not None else "required" if p.required else "may be left out"
        out.append(f"parameter {name}: {rule}" + (f", {p.label}" if p.label else ""))
    reads = Counter(r.category for r in pack.reads)
    for name, c in pack.categories.items():
        parts = [f"{reads[name]} reads" + (" by view" if c.aggregate else "")]
        parts.append("no threshold, reported only" if c.threshold is None else f"flagged from {c.threshold:g}")
        if c.platt:
            parts.append(f"platt {c.platt[0]:.4g}, {c.platt[1]:.4g}")
        if c.requires:
            parts.append("needs " + ", ".join(c.requires))
        if not c.fitted:
            parts.append("not calibrated for want of labels: it ranks and does not decide")
        elif not c.decides:
            parts.append("does not decide")
        out.append(f"category {name}" + (f" ({c.label})" if c.label and c.label != name else "") + ": " + "; ".join(parts))
    if pack.decision:
        d = pack.decision
        text = f"decision: {d.mode}, fallback {d.fallback}"
        if d.max_threshold is not None:
            text += f", max from {d.max_threshold:g}"
        if pack.micro:
            text += f", micro layer of {len(pack.micro.inputs)} inputs and {pack.micro.hidden} hidden units from {pack.micro.threshold:g}"
        if d.critical:
            text += f", critical: {', '.join(d.critical)}"
        out.append(text)
    out += [f"{p.level}: {p}" for p in pack.notes]
    if questions:
        for q in (*pack.questions, *pack.slots):
            out.append(f"query {q.query.id}: {q.query.template!r} {list(q.query.options or ())}")
            if q.query.combinations is not None:
                out += [f"  {', '.join(f'{k} = {v!r}' for k, v in values.items())}" for values in q.values]
    return out
