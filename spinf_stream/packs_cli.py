"""`spinf-stream packs`: list, show, validate, seal, compare, begin and re-evaluate packs; record what drift is measured against.

A PACK is a file, or an id of the catalog, id@version. Nothing here needs a model or a broker.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spinf_stream.errors import UsageError
from spinf_stream.packs.problems import PackError
from spinf_stream.settings_cli import add_settings, loaded

_SETTINGS = ("pack_sources", "cache_dir")


def arguments(parser: argparse.ArgumentParser) -> None:
    subs = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    p = _action(subs, "list", "the packs of all sources")
    p.add_argument("--refresh", action="store_true", help="resolve tags and branches of GitHub sources again")
    p.add_argument("--json", action="store_true")
    p = _action(subs, "show", "one pack: contexts, questions, categories, decision")
    p.add_argument("pack", metavar="PACK")
    p.add_argument("--questions", dest="asked", action="store_true", help="print each question")
    p.add_argument("--json", action="store_true", help="the file as it is")
    p = _action(subs, "validate", "check packs: exit 0 only when nothing is wrong")
    p.add_argument("files", metavar="FILE", nargs="+", help="a pack file, or a folder of packs")
    p.add_argument("--strict", action="store_true", help="notes fail too")
    p = _action(subs, "seal", "write each file's digest into it: an edit after that is refused until the file is sealed again")
    p.add_argument("files", metavar="FILE", nargs="+")
    p = _action(subs, "diff", "what changed, and which scores stay comparable")
    p.add_argument("old", metavar="OLD")
    p.add_argument("new", metavar="NEW")
    p.add_argument("--json", action="store_true")
    p = _action(subs, "new", "write a draft to edit")
    p.add_argument("id", metavar="NAMESPACE/NAME")
    p.add_argument("--categories", metavar="A,B,...", required=True)
    p.add_argument("--out", metavar="FILE", default="-")
    p = _action(subs, "evaluate", "take decisions again over stored scores")
    p.add_argument("pack", metavar="PACK")
    p.add_argument("file", metavar="FILE", nargs="?", default="-", help="JSONL of scores records, - for standard input (default)")
    p.add_argument("--out", metavar="FILE", default="-", help="the records, with this pack's entry taken again")
    p.add_argument("--from", dest="origin", metavar="PACK", help="the version that made the scores: refuse where its questions differ")
    p.add_argument("--context", metavar="NAME", help="this context alone")
    p.add_argument("--mode", choices=("max", "per_category", "micro_layer"))
    p.add_argument("--threshold", type=float, metavar="X", help="of the mode")
    p.add_argument("--set", action="append", default=[], metavar="CATEGORY=X", help="a category's threshold, or null to report only")
    p.add_argument("--critical", metavar="A,B,...", help="critical categories, '' for none")
    p.add_argument("--quiet", action="store_true", help="no summary")
    p = _action(subs, "baseline", "record the scores of a topic as what drift is measured against (setting drift_baseline)")
    p.add_argument("file", metavar="FILE", nargs="?", default="-", help="JSONL of scores records, - for standard input (default)")
    p.add_argument("--out", metavar="FILE", default="-")
    p.add_argument("--raw", action="append", default=[], metavar="PACK", help="take the model's own probabilities of this pack, which a draft has too; repeatable")


def run(args: argparse.Namespace) -> int:
    try:
        return int(globals()["_" + args.action](args))
    except PackError as e:
        lines = "".join(f"\n  {p}" for p in e.problems)
        raise UsageError(f"{e.where}:{lines}", 3 if type(e).__name__ == "Away" else 1) from None


def find(args: argparse.Namespace, name: str) -> Any:
    """The pack of a command line's PACK."""
    from spinf_stream.packs.file import load

    if name.endswith(".json") or Path(name).is_file():
        return load(name)
    pack, _, version = name.partition("@")
    return _catalog(args).load(pack, version or None)


def _action(subs: Any, name: str, line: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False)
    add_settings(parser, _SETTINGS)
    return parser


def _catalog(args: argparse.Namespace, refresh: bool = False) -> Any:
    from spinf_stream.packs.sources import open_catalog

    settings = loaded(args).settings
    return open_catalog(settings.pack_sources, settings.cache(), refresh)


def _list(args: argparse.Namespace) -> int:
    catalog = _catalog(args, args.refresh)
    if args.json:
        keys = ("id", "version", "model", "status", "source", "name", "description", "tags")
        print(json.dumps([{k: getattr(v, k) for k in keys} for v in catalog.versions], ensure_ascii=False, indent=1))
    else:
        rows = [("PACK", "VERSION", "MODEL", "STATUS", "SOURCE", "NAME")]
        rows += [(v.id, v.version, v.model or "(draft)", v.status, v.source, v.name) for v in catalog.versions]
        _columns(rows)
    for source in catalog.sources:
        if source.note:
            print(f"note: {source.listing.source}: {source.note}", file=sys.stderr)
    for p in catalog.problems:
        print(f"problem: {p}", file=sys.stderr)
    return 1 if catalog.problems else 0


def _show(args: argparse.Namespace) -> int:
    from spinf_stream.packs.show import show_lines

    pack = find(args, args.pack)
    if args.json:
        print(json.dumps(pack.doc, ensure_ascii=False, indent=1))
    else:
        print("\n".join(show_lines(pack, args.asked)))
    return 0


def _validate(args: argparse.Namespace) -> int:
    from spinf_stream.packs.file import load
    from spinf_stream.packs.manifest import list_folder, open_version
    from spinf_stream.packs.sources import reserved

    bad = 0
    for name in args.files:
        path = Path(name)
        todo: list[tuple[str, Any]] = [(name, lambda path=path: load(path))]
        if path.is_dir():
            listing = list_folder(path, name)
            todo = [(str(v.path), lambda v=v: open_version(v)) for v in listing.versions]
            bad += len(listing.problems)
            for p in listing.problems:
                print(f"{name}: {p}")
            if not todo:
                bad += 1
                print(f"{name}: no pack in this folder")
        for where, opened in todo:
            try:
                pack = opened()
            except PackError as e:
                bad += 1
                for p in e.problems:
                    print(f"{where}: {p}")
                continue
            taken = reserved(pack, Path(where))
            notes = [*pack.notes, *([taken] if taken else [])]
            for p in notes:
                print(f"{where}: {p.level}: {p}")
            failed = any(p.level == "edited" or args.strict for p in notes)
            bad += failed
            if not failed:
                state = f"fitted on {pack.model}" if pack.calibrated else "draft"
                print(f"{where}: ok, {pack.label}, {state}, {len(pack.prompts)} prompts, {pack.digest}" + (", sealed" if pack.sealed else ", not sealed"))
    return 1 if bad else 0


def _seal(args: argparse.Namespace) -> int:
    from spinf_stream.files import sink
    from spinf_stream.packs.document import parse, read_bytes, sealed, sealed_text
    from spinf_stream.packs.file import from_doc

    for name in args.files:
        raw = read_bytes(Path(name))
        doc = parse(raw, name)
        pack = from_doc(sealed(doc), name)
        for p in pack.notes:
            if p.level == "edited":
                print(f"{name}: {p.level}: {p}")
        if doc.get("digest") == pack.digest:
            print(f"{name}: {pack.label} is sealed already, {pack.digest}")
            continue
        with sink(name) as to:
            to.write(sealed_text(raw.decode("utf-8-sig")).encode("utf-8"))
        print(f"{name}: sealed, {pack.label}, {pack.digest}")
    return 0


def _diff(args: argparse.Namespace) -> int:
    from spinf_stream.packs.diff import diff, diff_lines

    old, new = find(args, args.old), find(args, args.new)
    found = diff(old, new)
    if args.json:
        print(json.dumps({**found._asdict(), "changes": [c._asdict() for c in found.changes]}, ensure_ascii=False, indent=1))
    else:
        print("\n".join(diff_lines(found, old, new)))
    return 0


def _new(args: argparse.Namespace) -> int:
    from spinf_stream.packs.draft import draft_text
    from spinf_stream.packs.file import loads

    names = [n.strip() for n in args.categories.split(",") if n.strip()]
    if len(set(names)) < len(names) or not names:
        raise UsageError("--categories needs distinct names, with commas between them")
    text = draft_text(args.id, names)
    loads(text.encode(), args.id)
    if args.out == "-":
        print(text, end="")
        return 0
    try:
        with open(args.out, "x", encoding="utf-8") as f:
            f.write(text)
    except OSError as e:
        raise UsageError(f"{args.out}: {e.strerror}") from None
    print(f"{args.out}: a draft with {len(names)} categories; edit its questions, then calibrate it")
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from spinf_stream.packs.reevaluate import evaluate_file

    pack = find(args, args.pack)
    origin = find(args, args.origin) if args.origin else None
    call: dict[str, Any] = {}
    if args.mode:
        call["mode"] = args.mode
    if args.threshold is not None:
        call["threshold"] = args.threshold
    if args.set:
        call["thresholds"] = dict(map(_setting, args.set))
    if args.critical is not None:
        call["critical"] = [c.strip() for c in args.critical.split(",") if c.strip()]
    return evaluate_file(pack, args.file, args.out, call, origin, args.context, quiet=args.quiet)


def _baseline(args: argparse.Namespace) -> int:
    from spinf_stream.packs.baseline import record_file

    return record_file(args.file, args.out, [find(args, name) for name in args.raw])


def _setting(text: str) -> tuple[str, float | None]:
    name, sign, value = text.rpartition("=")
    try:
        if not sign:
            raise ValueError
        return name, None if value == "null" else float(value)
    except ValueError:
        raise UsageError(f"--set {text}: write CATEGORY=0.7, or CATEGORY=null") from None


def _columns(rows: Sequence[tuple[str, ...]]) -> None:
    wide = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide)).rstrip())
