"""What the worker touches of vLLM's and transformers' internals, one row for each touch.

No engine starts and no weight is read. `make canary` runs this against the installed vLLM,
`make canary VLLM=0.33.0` against another one, and prints one sentence for each thing that moved.

`test_imports` reads the project's source: what it imports and calls by name has its row by itself.
What is reached through an object, or recognised by its words, stands in the tables of the other
files, each row under the room that uses it; `touch` says what a row may look like.
"""
