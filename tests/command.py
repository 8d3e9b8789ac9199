"""`python -m worker` as somebody types it, and programs that answer rows in their own process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def worker(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it with these variables and no others that it reads."""
    clean = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "XDG_CACHE_HOME")}
    return subprocess.run(
        [sys.executable, "-m", "worker", *words],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def answered(rows: Sequence[Any], word: str, *program: str) -> list[Any]:
    """Give rows to a Python program, as JSON behind its arguments; return what it says of each.

    It says it as JSON, on a line that begins with `word`.
    """
    done = subprocess.run(
        [sys.executable, *program, json.dumps(rows)],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    found = re.findall(rf"^{word} (.*)", done.stdout, re.MULTILINE)
    assert len(rows) == len(found), done.stderr[-3000:]
    return [json.loads(line) for line in found]


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sentences that say what is wrong."""
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]
