"""The configuration: a mapping of variables in, one frozen value out.

    environ ─┬─ the worker's own variables ───────────────────────────┐
             ├─ names that vLLM has dropped: warn, and say or do what ─┤
             │  replaces them                                          ├─ Settings
             └─ every option of vLLM's command line (`command_line`) ──┘

Of one option the first that sets it counts: VLLM_EXTRA_ARGS, the environment, VLLM_CONFIG_FILE,
what the image was built with, vLLM's default.
Everything wrong is collected and raised at once, before any weight is read.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from worker.configuration.checks import (
    check,
    check_adapters_on_demand,
    check_batches,
    imply,
    suspect,
)
from worker.configuration.environ import speaks_http
from worker.configuration.layers import (
    ENVIRONMENT,
    IMAGE,
    Findings,
    Given,
    config_file,
    extra_args,
    of_the_image,
    retired_and_vllm,
    values_said,
    vllm_options,
    without_dots,
    worker_variables,
)
from worker.configuration.variables import ALIASES, VARIABLES, Own
from worker.engine import command_line
from worker.errors import SettingsError
from worker.sentences import show


@dataclass(frozen=True)
class Row:
    """One line of the report: a value that differs from the default, and where it came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Settings:
    """Everything the worker was told.

    `args` are the arguments of `vllm serve` (0.32), already through `validate_parsed_serve_args`.
    Its `served_model_name` is always set, so that a resolved path never becomes a public name.
    """

    model: str
    served_model_names: tuple[str, ...]
    args: argparse.Namespace
    own: Own = field(default_factory=Own)
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str], baked: Mapping[str, str] = {}) -> "Settings":
        """Read the variables of `environ`, as they were before `process_environ`.

        `baked` holds the variables that the image was built with.
        Raises SettingsError with one sentence for each problem.
        """
        found = Findings()
        said, of_build = without_dots(values_said(environ), found), values_said(baked)
        http = speaks_http(environ)
        own = {
            **worker_variables(of_build, IMAGE, found, http=http),
            **worker_variables(said, ENVIRONMENT, found, http=http),
        }
        above = {
            **config_file(said, found),
            **retired_and_vllm(said, found),
            **extra_args(said, found),
        }
        given = {**of_the_image(vllm_options(of_build, IMAGE, found), above, found), **above}
        imply(given, own, found)
        check_batches(own, found)
        check_adapters_on_demand(own, found)
        check(given, found)
        suspect(environ, found, http=http)
        if found.problems:
            raise SettingsError(*found.problems)

        model = given["model"].value
        served = given["served_model_name"].value if "served_model_name" in given else [model]
        args = command_line.namespace({dest: value.value for dest, value in given.items()})
        args.served_model_name = list(served)
        try:
            command_line.validate(args)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return cls(
            model=model,
            served_model_names=tuple(served),
            args=args,
            own=Own(**{f.name: own[f.name].value for f in fields(Own) if f.name in own}),
            rows=(*_own_rows(own), *_vllm_rows(given)),
            warnings=tuple(found.warnings),
        )

    def report(self) -> str:
        """Return the block printed at the start: what was set, from where, and the warnings."""
        lines = ["Settings that differ from the defaults:"]
        names = max((len(row.name) for row in self.rows), default=0)
        values = max((len(row.value) for row in self.rows if len(row.value) <= 60), default=0)
        lines += [f"  {r.name:<{names}}  {r.value:<{values}}  {r.source}" for r in self.rows]
        return "\n".join([*lines, *(f"WARNING: {warning}" for warning in self.warnings)])


def _own_rows(own: Mapping[str, Given]) -> Iterable[Row]:
    for variable in VARIABLES:
        given = own.get(variable.field or variable.name)
        if given and given.value != variable.default:
            yield Row(given.name, show(given.name, given.value), given.source)


def _vllm_rows(given: Mapping[str, Given]) -> Iterable[Row]:
    for dest, option in sorted(command_line.options().items(), key=lambda pair: pair[0] != "model"):
        if dest in given and (dest == "model" or given[dest].value != option.default):
            value = given[dest]
            yield Row(value.name, show(value.name, value.value, option.default), value.source)


def help_text() -> str:
    """Return what `python -m worker --help` prints of the variables."""
    lines = ["The worker's own variables:", ""]
    for variable in VARIABLES:
        default = "" if variable.default in (None, ()) else f" [{show('', variable.default)}]"
        lines += [f"  {' or '.join(variable.names)}{default}", f"      {variable.meaning}"]
    lines += ["", "Names that users of this worker know:", ""]
    lines += [f"  {alias:<34} is {name}" for alias, name in ALIASES.items()]
    lines += ["", "vLLM's options, each the variable of its command line option:"]
    group = ""
    for option in command_line.options().values():
        if option.server:
            continue
        if option.group != group:
            group = option.group
            lines += ["", f"  {group}"]
        default = f" [{option.shown_default}]" if option.shown_default else ""
        lines.append(f"    {' or '.join(option.names)}: {option.accepts}{default}")
    return "\n".join(lines)
