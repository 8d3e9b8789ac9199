"""The commands of the workers that these tests run."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
ECHO = [sys.executable, str(HERE / "echo_worker.py")]  # made with the real SDK
QUICK = [sys.executable, "-S", str(HERE / "quick_worker.py")]  # starts at once
HTTP = [sys.executable, str(HERE / "http_worker.py")]  # of a load-balancing endpoint
ENGINE = [sys.executable, str(HERE / "engine_worker.py")]  # tells figures as vLLM does
