"""A process that plans configurations as the doctor does, and prints what comes of each as JSON.

    python planned.py <card or cpu> <bytes of cache> '[{"model": …, …}, …]'

Each set of vLLM's arguments gets its line: tokens, requests at once, bytes a token and of weights.
"""

import json
import sys

from worker.doctor.cards import read

name, available, rows = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if name != "cpu":
    from worker.engine import card

    count, one = read(name)
    card.stand_in(one.name, one.memory, one.capability, count)
from worker.engine import command_line, planner  # noqa: E402 - the card comes before vLLM

for row in rows:
    plan = planner.plan(command_line.namespace({"skip_tokenizer_init": True, **row}))
    found = plan.capacity(available)
    assert isinstance(found, planner.Capacity), found
    figures = (found.tokens, found.at_once, plan.token_bytes, plan.weights)
    print("planned", json.dumps(figures), flush=True)
