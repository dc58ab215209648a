"""Questions to a running Prometheus."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


def ask(url: str, path: str, **parameters: str) -> Any:
    """The `data` of an answer. Raises AssertionError with Prometheus' own words."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as e:
        raise AssertionError(f"{parameters}: {e.read().decode()}") from None


def query(url: str, expr: str) -> list[dict[str, Any]]:
    return list(ask(url, "query", query=expr)["result"])


def firing(url: str) -> set[str]:
    return {a["labels"]["alertname"] for a in ask(url, "alerts")["alerts"] if a["state"] == "firing"}


def runbook(url: str, alert: str) -> str:
    """The page that the link of a firing alert leads to."""
    links = {a["annotations"]["runbook_url"] for a in ask(url, "alerts")["alerts"] if a["labels"]["alertname"] == alert and a["state"] == "firing"}
    (link,) = links
    return page(link)


def page(link: str) -> str:
    with urllib.request.urlopen(link, timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        return str(answer.read().decode())


def until(true: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.3)
