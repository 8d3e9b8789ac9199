"""`python -m worker` as somebody types it: how it is run, and what it says is wrong."""

import os
import subprocess
import sys


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


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sentences that say what is wrong."""
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]
