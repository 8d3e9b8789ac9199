"""A logits processor that makes an engine as slow as a large model is: STEPS_PER_S."""

import os
import time

from vllm.v1.sample.logits_processor import LogitsProcessor

STEP_S = 1 / float(os.environ["STEPS_PER_S"])


class Pace(LogitsProcessor):
    def __init__(self, *_: object) -> None:
        self._due_s = 0.0

    def is_argmax_invariant(self) -> bool:
        return False  # else greedy requests leave it out

    def update_state(self, batch_update: object) -> None:
        pass

    def apply(self, logits: object) -> object:
        now_s = time.monotonic()
        if now_s - self._due_s > 0.1:
            self._due_s = now_s  # nothing ran before
        time.sleep(max(0.0, self._due_s - now_s))
        self._due_s += STEP_S
        return logits
