"""RunPod's Hub asks for a file of this name; the worker itself is src/worker."""

import sys

from worker.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
