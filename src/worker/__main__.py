"""`python -m worker` starts the worker; the guard is for vLLM's children, which import this."""

import sys

from worker.handler import main

if __name__ == "__main__":
    sys.exit(main())
