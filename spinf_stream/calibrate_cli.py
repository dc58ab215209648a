"""`spinf-stream calibrate PACK DATA.jsonl`: fit a pack's constants and thresholds on labelled data, and report.

Rows and scores meet by `id`. Without --scores the rows are scored first, with the model of the settings; the scores stay
beside the report, so that a second fit needs no forward pass. A file's rows then meet that file's scores alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from spinf_stream.config import PackEntry
from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import MODEL, add_settings, loaded

USES = ("data", "test", "unlabelled")  # of files of rows
_SETTINGS = ("pack_sources", "content", "max_content_tokens", *MODEL)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="a pack file, or an id of the catalog")
    parser.add_argument("data", metavar="DATA", help="JSONL rows with id, text and a label")
    parser.add_argument("--label", metavar="FIELD", default="label", help="the label's field (default label)")
    parser.add_argument(
        "--map", action="append", default=[], metavar="LABEL=CATEGORY,...", help="what a label means; LABEL= for none of the categories, CATEGORY? where it says nothing"
    )  # fmt: skip
    parser.add_argument("--unlabelled", metavar="FILE", help="JSONL rows of normal traffic, for mean, sd, mu and quantiles")
    parser.add_argument("--test", metavar="FILE", help="labelled rows to report on; without it a part of DATA is held out")
    parser.add_argument("--hold-out", type=float, default=0.25, metavar="SHARE", help="share of DATA held out (default 0.25)")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--scores", action="append", default=[], metavar="FILE", help="scores records of all those rows; repeatable")
    parser.add_argument("--from", dest="origin", metavar="PACK", help="the version that made --scores, where it is not PACK: its questions must be the same")
    parser.add_argument("--context", metavar="NAME", help="the pack's context (default its first)")
    parser.add_argument("--target", default="f1", metavar="f1|precision=X|flag-rate=X", help="what thresholds are chosen for (default f1)")
    parser.add_argument("--allow-unlabelled", action="store_true", help="categories without labels rank and never decide, instead of an error")
    parser.add_argument("--id", metavar="NAMESPACE/NAME", help="of the calibrated pack (default PACK's); required for an official pack: its name stays ours")
    parser.add_argument("--pack-version", metavar="V", help="of the calibrated pack; required when PACK is calibrated already and keeps its id")
    parser.add_argument("--out", metavar="FOLDER", help="default: <pack name>-calibration")
    parser.add_argument("--no-plots", action="store_true", help="no PNGs, which need the extra `report` (matplotlib)")
    add_settings(parser, _SETTINGS)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.packs import plots
    from spinf_stream.packs.calibrate import calibrate
    from spinf_stream.packs.labels import LabelError, label_matrix
    from spinf_stream.packs.problems import PackError
    from spinf_stream.packs.report import page, write_report
    from spinf_stream.packs.stored import StoredError
    from spinf_stream.packs_cli import find

    target, mapping = _target(args.target), dict(map(_mapping, args.map))
    if not 0 < args.hold_out < 1:
        raise UsageError("--hold-out must lie between 0 and 1")
    try:
        pack = find(args, args.pack)
        name = _named(args.id, pack)
        if pack.calibrated and args.pack_version is None and name == pack.id:
            raise UsageError(f"{pack.label} is calibrated already: give the new one its --pack-version")
        if args.context is not None and args.context not in pack.contexts:
            raise UsageError(f"{pack.label} has no context {args.context!r}; it has {', '.join(pack.contexts)}")
        if args.origin and not args.scores:
            raise UsageError("--from says what made the records of --scores: give both, or neither")
        out = Path(args.out or name.rpartition("/")[2] + "-calibration")
        sets = {use: (f, _rows(f, None if use == "unlabelled" else args.label)) for use in USES if (f := getattr(args, use))}
        for use in USES[:2]:  # before the model is opened
            if use in sets:
                label_matrix(sets[use][1], pack.categories, mapping)
        scores = _stored(args, pack, sets) if args.scores else _scored(args, pack, sets, out)
        report = calibrate(
            pack, sets["data"][1], scores["data"], mapping, target, test_rows=sets["test"][1] if args.test else None,
            normal_rows=sets["unlabelled"][1] if args.unlabelled else None, test_scores=scores.get("test"), normal_scores=scores.get("unlabelled"),
            context=args.context, share=args.hold_out, seed=args.seed, name=name, version=args.pack_version, allow_unlabelled=args.allow_unlabelled,
            data_name=" and ".join(Path(f).name for f in (args.data, args.test) if f) + f", labels of {args.label!r}",
        )  # fmt: skip
    except PackError as e:
        raise UsageError(f"{e.where}:" + "".join(f"\n  {p}" for p in e.problems), 1) from None
    except (LabelError, StoredError) as e:
        raise UsageError(str(e), 1) from None
    with_plots = not args.no_plots and plots.available()
    try:
        written = write_report(report, out, with_plots=with_plots)
    except OSError as e:
        raise UsageError(f"{out}: {e.strerror}") from None
    print("\n".join(page(report, False)))
    kept = [] if args.scores else [str(scores_file(out, use)) for use in sets]
    print("\nwritten: " + ", ".join(map(str, [*written, *kept])), file=sys.stderr)
    if not with_plots and not args.no_plots:
        print(plots.MISSING, file=sys.stderr)
    return 0


def _rows(name: str, field: str | None) -> list[Any]:
    from spinf_stream.files import lines
    from spinf_stream.packs.labels import read_rows

    with lines(name, blank=True) as records:
        return read_rows(records, field, name)


def _named(given: str | None, pack: Any) -> str:
    """The calibrated pack's id. Under an official name it would be left out by every worker, without a word to who made it."""
    from spinf_stream.packs.sources import OFFICIAL_NAMESPACE, RESERVED
    from spinf_stream.packs.validate import PACK_ID

    name = given or str(pack.id)
    if not PACK_ID.fullmatch(name) or len(name) > 128:
        raise UsageError(f"--id {name}: write NAMESPACE/NAME, in small letters")
    if name.startswith(OFFICIAL_NAMESPACE):
        raise UsageError(f"{RESERVED}, and a worker leaves {name} of any other source out: name yours, --id my/{name.removeprefix(OFFICIAL_NAMESPACE)}")
    return name


def _stored(args: argparse.Namespace, pack: Any, sets: dict[str, tuple[str, list[Any]]]) -> dict[str, Any]:
    """--scores: one set of records for all rows, which meet them by id alone. Raises LabelError, StoredError, PackError."""
    from spinf_stream.packs.labels import one_text_an_id
    from spinf_stream.packs.reevaluate import same_questions
    from spinf_stream.packs_cli import find

    one_text_an_id(sets.values())
    origin = find(args, args.origin) if args.origin else pack
    same_questions(origin, pack)
    scores = _read(args.scores, pack, args.context, origin.id)
    others = {label for label in scores.made_by if label[1] not in (pack.digest, origin.digest)}
    if others:
        version, digest = min(others)
        raise UsageError(
            f"--scores were made by {origin.id}@{version} ({digest[:19]}), which is not {args.pack} ({pack.digest[:19]}): name that version with --from, "
            "so that the questions are compared, or leave --scores out and the rows are scored again", 1,
        )  # fmt: skip
    return {"data": scores}


def scores_file(out: Path, use: str) -> Path:
    return out / f"scores-{use}.jsonl"


def _scored(args: argparse.Namespace, pack: Any, sets: dict[str, tuple[str, list[Any]]], out: Path) -> dict[str, Any]:
    """Score each file of rows with this pack alone, as `score` does; the records stay in `out`."""
    from spinf_stream.engine.open import open_scorer
    from spinf_stream.files import sink, source
    from spinf_stream.packs.sources import InHand
    from spinf_stream.score_cli import score

    entry = PackEntry(pack.id, pack.version, args.context)
    settings = msgspec.structs.replace(loaded(args).settings, questions=None, packs=(entry,), scores_format="full")
    out.mkdir(parents=True, exist_ok=True)
    scorer = open_scorer(settings, progress=True, catalog=InHand(pack))
    found = {}
    for use, (name, _) in sets.items():
        target = str(scores_file(out, use))
        with source(name) as (lines, size), sink(target) as to:
            asyncio.run(score(lines, size, scorer, to, name, quiet=False))  # rows that could not be scored are told by the report
        found[use] = _read([target], pack, args.context)
        if wrong := found[use].made_by - {(pack.version, pack.digest)}:
            raise UsageError(f"{target} was made by {pack.id}@{' '.join(min(wrong))}, not by {args.pack} ({pack.digest}): is another run writing there?", 1)
    return found


def _read(names: list[str], pack: Any, context: str | None, asked_as: str | None = None) -> Any:
    from spinf_stream.files import lines
    from spinf_stream.packs.scored import read_scores

    def every() -> Any:
        for name in names:
            with lines(name) as records:
                yield from records

    return read_scores(every(), pack, context, asked_as)


def _target(text: str) -> Any:
    from spinf_stream.packs.constants import Target

    name, sign, value = text.partition("=")
    try:
        if name == "f1" and not sign:
            return Target("f1")
        if name in ("precision", "flag-rate") and 0 < float(value) < 1:
            return Target(name, float(value))  # type: ignore[arg-type]
    except ValueError:
        pass
    raise UsageError(f"--target {text}: write f1, precision=0.9 or flag-rate=0.01")


def _mapping(text: str) -> tuple[str, tuple[str, ...]]:
    label, sign, names = text.partition("=")
    if not sign or not label:
        raise UsageError(f"--map {text}: write LABEL=CATEGORY, or LABEL= for none of the categories")
    return label, tuple(n.strip() for n in names.split(",") if n.strip())
