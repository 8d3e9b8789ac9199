"""What a worker's environment needs to run vLLM's V2 model runner, the GPUs' one, on this CPU.

The runner's own Python code runs as on a GPU. Its Triton kernels run in Triton's interpreter, which
is exact and slow: the tiny model makes about 80 tokens a second.
"""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRITON = HERE.parents[1] / ".cache" / "triton-cpu"


def environ(*python_path: Path) -> dict[str, str]:
    """Install Triton if need be, and give the variables; `python_path` is searched first.

    As on a GPU, scheduling is asynchronous: ASYNC_SCHEDULING=false turns it off.
    Where Triton cannot be installed the test is skipped; in CI it fails.
    """
    ended = subprocess.run([HERE / "setup.sh"], capture_output=True, encoding="utf-8", check=False)
    if ended.returncode != 0:
        sentence = f"Triton, which the V2 runner needs, cannot be installed: {ended.stderr}"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return {
        "PYTHONPATH": os.pathsep.join(map(str, [*python_path, TRITON, HERE / "interpreter"])),
        "TRITON_INTERPRET": "1",
        "TRITON_DEFAULT_BACKEND": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
