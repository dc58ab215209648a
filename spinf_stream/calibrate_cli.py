"""`spinf-stream calibrate PACK DATA.jsonl`: fit a pack's constants and thresholds on labelled data, and report.

Rows and scores meet by `id`. Without --scores the rows are scored first, with the model of the settings; the scores stay
beside the report, so that a second fit needs no forward pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import MODEL, add_settings, loaded

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
    parser.add_argument("--context", metavar="NAME", help="the pack's context (default its first)")
    parser.add_argument("--target", default="f1", metavar="f1|precision=X|flag-rate=X", help="what thresholds are chosen for (default f1)")
    parser.add_argument("--allow-unlabelled", action="store_true", help="categories without labels rank and never decide, instead of an error")
    parser.add_argument("--pack-version", metavar="V", help="of the calibrated pack; required when PACK is calibrated already")
    parser.add_argument("--out", metavar="FOLDER", help="default: <pack name>-calibration")
    parser.add_argument("--no-plots", action="store_true")
    add_settings(parser, _SETTINGS)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.packs import plots
    from spinf_stream.packs.calibrate import calibrate
    from spinf_stream.packs.labels import LabelError
    from spinf_stream.packs.problems import PackError
    from spinf_stream.packs.report import page, write_report
    from spinf_stream.packs.stored import StoredError
    from spinf_stream.packs_cli import find

    target, mapping = _target(args.target), dict(map(_mapping, args.map))
    if not 0 < args.hold_out < 1:
        raise UsageError("--hold-out must lie between 0 and 1")
    try:
        pack = find(args, args.pack)
        if pack.calibrated and args.pack_version is None:
            raise UsageError(f"{pack.label} is calibrated already: give the new one its --pack-version")
        if args.context is not None and args.context not in pack.contexts:
            raise UsageError(f"{pack.label} has no context {args.context!r}; it has {', '.join(pack.contexts)}")
        out = Path(args.out or pack.id.rpartition("/")[2] + "-calibration")
        rows, test = _rows(args.data, args.label), _rows(args.test, args.label) if args.test else None
        normal = _rows(args.unlabelled, None) if args.unlabelled else None
        scores = _scores(args, pack, out)
        report = calibrate(
            pack, rows, scores, mapping, target, test_rows=test, normal_rows=normal, context=args.context,
            share=args.hold_out, seed=args.seed, version=args.pack_version, allow_unlabelled=args.allow_unlabelled,
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
    print("\nwritten: " + ", ".join(map(str, written)), file=sys.stderr)
    if not with_plots and not args.no_plots:
        print(plots.MISSING, file=sys.stderr)
    return 0


def _rows(name: str, field: str | None) -> list[Any]:
    from spinf_stream.files import lines
    from spinf_stream.packs.labels import read_rows

    with lines(name, blank=True) as records:
        return read_rows(records, field, name)


def _scores(args: argparse.Namespace, pack: Any, out: Path) -> Any:
    from spinf_stream.files import lines
    from spinf_stream.packs.calibrate import read_scores

    def all_lines(names: list[str]) -> Any:
        for name in names:
            with lines(name) as records:
                yield from records

    files = args.scores or [_score(args, pack, Path(data), out) for data in (args.data, args.test, args.unlabelled) if data]
    return read_scores(all_lines(files), pack, args.context)


def _score(args: argparse.Namespace, pack: Any, data: Path, out: Path) -> str:
    """Score one file of rows with this pack alone, through the `score` command."""
    from spinf_stream import cli
    from spinf_stream.packs.document import text_of

    out.mkdir(parents=True, exist_ok=True)
    source = out / "scored-pack.json"
    source.write_text(text_of(pack.doc), "utf-8")
    target = out / f"scores-{data.stem}.jsonl"
    entry = json.dumps([{"id": pack.id, "version": pack.version, **({"context": args.context} if args.context else {})}])
    flags = ["--questions", "none", "--packs", entry, "--pack-sources", str(source), "--out", str(target)]
    settings = loaded(args)
    for name in _SETTINGS[1:]:
        if name in vars(args):
            flags += ["--" + name.replace("_", "-"), str(getattr(settings.settings, name))]
    if args.config:
        flags += ["--config", args.config]
    if cli.main(["score", str(data), *flags]) not in (0, 1):  # 1: some rows could not be scored, which the report tells
        raise UsageError(f"{data}: could not be scored", 1)
    return str(target)


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
