"""The doctor against the truth: what it plans is what vLLM's engine then does.

The models are tiny and random, of the five kinds of cache; the engine is the CPU's, with a cache of
a fixed size. What a card's engine does cannot be seen here.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import KINDS, SMALL, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENGINE = """
import json, sys
from vllm import LLM
if __name__ == "__main__":
    LLM(**json.loads(sys.argv[1]), load_format="dummy")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_requests_at_once(kind: str, tmp_path: Path) -> None:
    """The engine logs the doctor's tokens and requests at once, to the last one."""
    row = {
        "model": write(tmp_path / kind, SMALL | KINDS[kind]),
        "max_model_len": 2048,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
    }
    engine = _run("-c", ENGINE, json.dumps(row))
    said = re.search(r"KV cache size: ([\d,]+) tokens,.*tokens per request: ([\d.]+)x", engine)
    planned = _run(
        str(Path(__file__).with_name("planned.py")), "cpu", str(2**30), f"[{json.dumps(row)}]"
    )
    tokens, at_once = json.loads(re.findall(r"^planned (.*)", planned, re.MULTILINE)[0])[:2]

    assert said, engine[-2000:]
    assert (said[1], said[2]) == (f"{tokens:,}", f"{at_once:.2f}")


def _run(*words: str) -> str:
    environ = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout
