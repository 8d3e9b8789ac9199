"""The build's programs, run as a build runs them."""

import os
import subprocess
import sys
from pathlib import Path

from hub_stand_in import Hub

PROJECT = Path(__file__).parents[1]
# A Dockerfile declares every argument; the ones that nobody gave are empty.
EMPTY = dict.fromkeys(
    (
        *("MODEL_NAME", "MODEL_REVISION", "TOKENIZER_NAME", "TOKENIZER_REVISION"),
        *("QUANTIZATION", "QUANTIZE", "BASE_PATH", "LORA_MODULES"),
    ),
    "",
)


class Build:
    """The programs of builder/, run with a build's environment; `root` is the image's root."""

    def __init__(self, hub: Hub, root: Path) -> None:
        self.hub = hub
        self.root = root

    def run(
        self, program: str, *words: str | Path, python: str = sys.executable, **arguments: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        ours = {"PYTHONPATH": str(PROJECT / "src"), "HF_ENDPOINT": self.hub.url}
        return subprocess.run(
            [python, PROJECT / "builder" / program, "--root", self.root, *words],
            env=kept | ours | EMPTY | arguments,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def bake(self, *words: str | Path, **arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("bake.py", *words, **arguments)

    def snapshot(self, name: str, base: str = "models") -> Path:
        """Return the folder of a baked repository."""
        folder = f"models--{name.replace('/', '--')}"
        (snapshot,) = (self.root / base / "huggingface-cache/hub" / folder).glob("snapshots/*")
        return snapshot

    def files(self, name: str) -> set[str]:
        folder = self.snapshot(name)
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
