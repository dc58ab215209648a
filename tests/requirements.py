"""`make requirements`: what the suite needs and does not find, one line each with the command that brings it."""

from __future__ import annotations

import os
import sys

from kafka_jars import MissingRequirement, broker_jars
from services import need


def missing() -> list[str]:
    said = []
    for given, program, package, instead in (
        ("SPINF_TEST_REDIS", "redis-server", "redis-server", " (or set SPINF_TEST_REDIS=redis://HOST:PORT/0)"),
        ("", "prometheus", "prometheus", ""),
        ("", "promtool", "prometheus", ""),
    ):
        if not os.environ.get(given):
            try:
                need(program, package, instead)
            except MissingRequirement as e:
                said.append(str(e))
    if not os.environ.get("SPINF_TEST_KAFKA"):
        try:
            broker_jars()
        except MissingRequirement as e:
            said.append(str(e))
    return said


if __name__ == "__main__":
    lines = missing()
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
