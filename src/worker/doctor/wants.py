"""What a model wants beside memory: which of vLLM's parsers fit it, and what it changes by itself.

All of it is read in the model's own files, and is a suggestion. A model writes its calls and its
thoughts as its chat template does; a parser fits where it looks for the same marks.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.engine import command_line
from worker.model import files

# A parser's name, marks that all stand in the chat template, and model types where others have the
# same marks; the first that fits is taken.
Row = tuple[str, tuple[str, ...], tuple[str, ...]]
TOOLS: Sequence[Row] = (
    ("openai", ("<|channel|>",), ("gpt_oss",)),
    ("gemma4", ("<|tool_call>",), ()),
    ("functiongemma", ("<start_function_call>",), ()),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json"), ()),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",), ()),
    ("kimi_k2", ("<|tool_calls_section_begin|>",), ()),
    ("minimax_m2", ("<minimax:tool_call>",), ()),
    ("seed_oss", ("<seed:tool_call>",), ()),
    ("internlm", ("<|action_start|>",), ()),
    ("longcat", ("<longcat_tool_call>",), ()),
    ("apertus", ("<|tools_prefix|>",), ()),
    ("dots", ("<dots_function_call>",), ()),
    ("mistral", ("[TOOL_CALLS]",), ()),
    ("lfm2", (), ("lfm2", "lfm2_moe", "lfm2_vl")),
    ("jamba", ("<tool_calls>",), ("jamba",)),
    ("hunyuan_a13b", ("<tool_calls>",), ("hunyuan_v1_moe",)),
    ("olmo3", ("<function_calls>",), ("olmo3",)),
    ("granite", ("<|tool_call|>",), ("granite", "granitemoe")),
    ("granite4", ("<tool_call>",), ("granitemoehybrid",)),
    ("ernie45", ("<tool_call>",), ("ernie4_5", "ernie4_5_moe")),
    ("glm45", ("<tool_call>", "<arg_key>", "[gMASK]<sop>"), ()),
    ("step3p5", ("<tool_call>",), ("step3p5",)),
    ("qwen3_xml", ("<tool_call>", "<function="), ()),
    ("hermes", ("<tool_call>",), ()),
    ("llama4_pythonic", (), ("llama4",)),
    ("llama3_json", ("<|eot_id|>", "ipython"), ()),
)
THOUGHTS: Sequence[Row] = (
    ("openai_gptoss", ("<|channel|>",), ("gpt_oss",)),
    ("gemma4", ("<|channel>",), ()),
    ("seed_oss", ("<seed:think>",), ()),
    ("mistral", ("[THINK]",), ()),
    ("minimax_m3", ("<mm:think>",), ()),
    ("minimax_m2", ("<think>", "<minimax:tool_call>"), ()),
    ("kimi_k2", ("<think>", "<|tool_calls_section_begin|>"), ()),
    ("glm45", ("<think>", "[gMASK]<sop>"), ()),
    ("granite", ("Here is my thought process",), ()),
    ("hunyuan_a13b", ("<think>",), ("hunyuan_v1_moe",)),
    ("ernie45", ("<think>",), ("ernie4_5", "ernie4_5_moe")),
    ("nemotron_v3", ("<think>",), ("nemotron_h",)),
    ("olmo3", ("<think>",), ("olmo3",)),
    ("step3p5", ("<think>",), ("step3p5",)),
    ("deepseek_v3", ("</think>", "<｜Assistant｜>", "thinking"), ()),
    ("qwen3", ("<think>", "enable_thinking"), ()),
    ("qwen3", ("<think>",), ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe")),
    ("deepseek_r1", ("</think>",), ()),
)


@dataclass(frozen=True)
class Wants:
    """What was found. `set` are variables that nobody has set, with the value that fits.

    `is_unknown` says that the template knows tools and no row knows the parser; `changes` is what
    vLLM takes of generation_config.json.
    """

    has_template: bool
    knows_tools: bool
    thinks: bool
    is_unknown: bool
    set: Mapping[str, str]
    changes: Mapping[str, Any] = field(default_factory=dict)


def read(args: argparse.Namespace, model_config: Any = None) -> Wants | None:
    """Return what the model in the folder `args.model` wants; None where there is no folder.

    `model_config` is vLLM's, where it has one.
    """
    folder = Path(args.model)
    is_pooling = getattr(model_config, "runner_type", args.runner) == "pooling"
    if not folder.is_dir() or is_pooling:
        return None
    template = "\n".join(_templates(args.chat_template, folder))
    kind = str(files.json_object(folder / "config.json").get("model_type"))
    knows_tools = bool(re.search(r"\{[{%][^}]*\btools\b", template))
    tools = _first(TOOLS, template, kind, "tool_call_parser") if knows_tools else ""
    thoughts = _first(THOUGHTS, template, kind, "reasoning_parser")
    found = {}
    if tools and not args.tool_call_parser:
        found["TOOL_CALL_PARSER"] = tools
    if knows_tools and not args.enable_auto_tool_choice and (tools or args.tool_call_parser):
        found["ENABLE_AUTO_TOOL_CHOICE"] = "true"
    if thoughts and not args.reasoning_parser:
        found["REASONING_PARSER"] = thoughts
    changes = model_config.get_diff_sampling_param() if model_config else {}
    is_unknown = knows_tools and not (tools or args.tool_call_parser)
    return Wants(bool(template), knows_tools, bool(thoughts), is_unknown, found, changes)


def _first(rows: Sequence[Row], template: str, kind: str, dest: str) -> str:
    known = command_line.registered(dest)
    for name, marks, kinds in rows:
        fits = all(mark in template for mark in marks) and (not kinds or kind in kinds)
        if template and fits and name in known:
            return name
    return ""


def _templates(given: str | None, folder: Path) -> Iterator[str]:
    """Return the chat templates: what CHAT_TEMPLATE says, else all that the model has."""
    if given:
        is_file = "{" not in given and Path(given).is_file()
        yield Path(given).read_text() if is_file else given
        return
    for file in (folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja")):
        if file.is_file():
            yield file.read_text()
    for name in ("chat_template.json", "tokenizer_config.json"):
        its = files.json_object(folder / name).get("chat_template")
        for one in its if isinstance(its, list) else [its]:
            text = one.get("template") if isinstance(one, dict) else one
            if isinstance(text, str):
                yield text
