"""The scores topic folded into daily series by the pipe that README and `index --help` show."""

from __future__ import annotations

import csv
import io
import shlex
import subprocess
import sys

import kafka_io
import pytest
from kafka_io import Rec
from test_operator_commands import scores

from spinf_stream.records import MSGPACK, Origin, encode

pytestmark = pytest.mark.kafka


def test_tail_piped_into_index(kafka: str, topics) -> None:
    topic = topics(2)
    sent = []
    for i in range(30):
        categories = {"oil_up": {"score": i / 30, "flagged": i > 20}, "oil_down": {"score": i / 60, "flagged": None}}
        pack = {"id": "my/oil", "version": "1", "digest": "d", "context": "plain", "calibrated": True, "categories": categories, "decision": None}
        place = Origin("articles", 0, i, -1)
        s = scores(f"a{i}", packs=[pack], published_at=f"2026-03-0{1 + i % 2}T00:00:00Z", origin=place)
        sent.append(Rec(encode(s, MSGPACK), b"k", [("content-type", MSGPACK.encode())], i % 2) if i % 3 else Rec(encode(s), b"k", (), i % 2))
    sent += [Rec(sent[0].value, b"k", (), 1), Rec(None, b"gone", (), 0)]  # written twice, and a tombstone
    kafka_io.run(kafka_io.produce(kafka, topic, sent))

    command = f"{shlex.quote(sys.executable)} -m spinf_stream.cli"
    pipe = f"{command} tail --from-beginning --json --brokers {kafka} --output-topic {topic} | {command} index --difference oil_up-oil_down"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(r["category"], r["day"], r["articles"]) for r in rows] == [
        (c, f"2026-03-0{d}", "15") for c in ("oil_up-oil_down", "oil_down", "oil_up") for d in (1, 2)
    ]
    mean = sum(i / 60 for i in range(0, 30, 2)) / 15
    assert float(rows[0]["mean"]) == pytest.approx(mean, abs=1e-6)
    assert "30 articles, 6 rows" in done.stderr
    assert "1 left out (written twice)" in done.stderr and "1 left out (outcome tombstone)" in done.stderr
