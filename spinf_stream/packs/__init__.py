"""Packs: question sets with categories, decisions and calibration, one JSON file a version.

    file.py        a file loaded: document.py (JSON, digest), validate.py and check_*.py (every fault with its path), queries.py
    evaluate.py    option probabilities -> categories and decision: read_plan.py (the reads as arrays), decide.py, micro.py
    sources.py     official packs, folders, GitHub (github.py), manifests (manifest.py) -> a catalog
    active.py      the packs that a worker asks, and their exchange while it runs
    stored.py      answers out of stored records: reevaluate.py takes decisions again, calibrate.py fits, index.py folds
    calibrate.py   labels.py and scored.py (rows and their scores), constants.py, fit.py, figures.py -> report.py, plots.py
    drift.py       how far live scores have moved from the traffic a pack was calibrated on, or from a baseline.py
    diff.py        what changed between two versions, and which scores stay comparable; draft.py begins a pack, show.py prints one

The format is the peer's (spinf-serve 0.1.1), evaluated bit for bit as it does. Ours on top, all of it ignored by the peer:

- A *draft* has `"calibrated": false` or no fitted constant at all. It asks and does not judge: `calibrated: false`, categories
  and decision null. Its reads, categories and decision may be left out altogether: then it is a question set with a version.
- `digest` in the file seals it: sha256 over everything else, in the file's order. A sealed file that was edited is refused, where
  the peer's lock overlooks weights and thresholds. `packs seal` writes it, and so does `calibrate`; the official packs have one.
- Queries may say `ends`, `residual`, `case_insensitive`, and extraction queries ({n}, {$}, {*}, also <n>, <$>, <*>) may stand
  among them; reads cannot read those.
- `calibration`, written by `spinf-stream calibrate`, says in which context, when and on which data the constants were fitted, and
  the figures on the rows held out; asked in another context the pack warns. A category with `"fitted": false` had no labels: its
  score ranks, and decides nothing, and its entry in the output says `"fitted": false` too.

A pack asks in its own words around the content (a context) and with its own case rule, so packs never change each other's
questions, nor those of a question file.
"""
