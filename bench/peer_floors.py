"""Run the script that times spinf-serve, then time it again on the same engine with `empty_floor: true`.

    python bench/peer_floors.py PEER_SCRIPT JOB TOKENIZER_DIR

Two JSON lines: the script's own, and {label: {wall_ms, gpu_ms}} with floors for 24 articles and for one.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> int:
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    found: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    exec(compile(script.read_text("utf-8"), str(script), "exec"), found)  # prints its line
    sys.stdout.flush()
    print(json.dumps(with_floors(found)))
    return 0


def with_floors(found: dict[str, Any]) -> dict[str, Any]:
    """found: the script's names. Its `request` makes requests through protocol.ScoreRequest, from a dict."""
    make = found["protocol"].ScoreRequest.model_validate

    def validate(body: dict[str, Any]) -> Any:
        assert body["scoring"]["empty_floor"] is False, "the script asks for floors already"
        return make({**body, "scoring": {**body["scoring"], "empty_floor": True}})

    found["protocol"] = SimpleNamespace(ScoreRequest=SimpleNamespace(model_validate=validate))
    out: dict[str, Any] = {}
    for label, articles in (("24", found["arts"]), ("1", found["arts"][:1])):
        walls, busy = [], []
        for n in range(5):
            request = found["request"](articles)
            found["torch"].cuda.synchronize()
            began = time.perf_counter()
            result = found["S"].score_request(request)
            if n:  # the first call compiles what floors need
                walls.append(1e3 * (time.perf_counter() - began))
                busy.append(1e3 * result["timing"]["gpu_busy_s"])
        out[label] = {"wall_ms": round(statistics.median(walls), 1), "gpu_ms": round(statistics.median(busy), 1), "packed_tokens": result["usage"]["packed_tokens"]}
    return out


if __name__ == "__main__":
    sys.exit(main())
