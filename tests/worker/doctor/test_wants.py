"""Which of vLLM's parsers fit a model is read in its chat template, and nothing is made up."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from vllm.reasoning import _REASONING_PARSERS_TO_REGISTER
from vllm.tool_parsers import _TOOL_PARSERS_TO_REGISTER

from worker.doctor import wants
from worker.engine import command_line

pytestmark = pytest.mark.timeout(120)

# In the manner of the models' own templates: how tools come in, and what their calls look like.
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
QWEN = TOOLS + "{{ '<|im_start|>assistant\\n<tool_call>\\n{\"name\": ' }}{{ '<think>' }}"
CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "Qwen3": (
        "qwen3",
        QWEN + "{% if enable_thinking %}{% endif %}",
        {"TOOL_CALL_PARSER": "hermes", "REASONING_PARSER": "qwen3"},
    ),
    "Qwen3-Coder": (
        "qwen3_moe",
        TOOLS + "<tool_call><function=",
        {"TOOL_CALL_PARSER": "qwen3_xml"},
    ),
    "Qwen2.5": ("qwen2", TOOLS + "<tool_call>", {"TOOL_CALL_PARSER": "hermes"}),
    "Llama 3.1": (
        "llama",
        TOOLS + "<|start_header_id|>ipython<|end_header_id|><|eot_id|>",
        {"TOOL_CALL_PARSER": "llama3_json"},
    ),
    "R1 distilled": (
        "qwen2",
        "{{ content.split('</think>')[-1] }}",
        {"REASONING_PARSER": "deepseek_r1"},
    ),
    "DeepSeek-V3.1": (
        "deepseek_v3",
        TOOLS + "{% if thinking %}<｜Assistant｜></think>{% endif %}<｜tool▁calls▁begin｜>",
        {"TOOL_CALL_PARSER": "deepseek_v31", "REASONING_PARSER": "deepseek_v3"},
    ),
    "gpt-oss": (
        "gpt_oss",
        TOOLS + "<|start|>assistant<|channel|>analysis<|message|>",
        {"TOOL_CALL_PARSER": "openai", "REASONING_PARSER": "openai_gptoss"},
    ),
    "Mistral": ("mistral", TOOLS + "[TOOL_CALLS]", {"TOOL_CALL_PARSER": "mistral"}),
    "GLM-4.5": (
        "glm4_moe",
        "[gMASK]<sop>" + TOOLS + "<think></think><tool_call><arg_key>",
        {"TOOL_CALL_PARSER": "glm45", "REASONING_PARSER": "glm45"},
    ),
    "no tools, no thoughts": ("llama", "{{ messages[0].content }} about tools", {}),
}


def _wants(folder: Path, kind: str, template: str, **options: Any) -> wants.Wants:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    found = wants.read(command_line.namespace({"model": str(folder), **options}))
    assert found
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_parsers_that_fit(name: str, tmp_path: Path) -> None:
    """What the template writes decides, and the type where several write alike."""
    kind, template, expected = CASES[name]
    found = _wants(tmp_path, kind, template)
    calls = {"ENABLE_AUTO_TOOL_CHOICE": "true"} if "TOOL_CALL_PARSER" in expected else {}

    assert expected | calls == found.set
    assert not found.is_unknown
    assert ("TOOL_CALL_PARSER" in expected) == found.knows_tools
    assert ("REASONING_PARSER" in expected) == found.thinks


def test_what_is_set_is_not_suggested(tmp_path: Path) -> None:
    """A variable that has a value stays as it is; a template of the user's own counts."""
    options = {"tool_call_parser": "xlam", "reasoning_parser": "qwen3"}

    assert {"ENABLE_AUTO_TOOL_CHOICE": "true"} == _wants(tmp_path, "qwen3", QWEN, **options).set
    assert {} == _wants(tmp_path, "qwen3", QWEN, chat_template="{{ messages }}").set


def test_a_template_that_no_row_knows(tmp_path: Path) -> None:
    """Nothing is guessed for it; a model without one is told apart."""
    unknown = _wants(tmp_path, "new", TOOLS + "<call>")

    assert ({}, True) == (unknown.set, unknown.is_unknown)
    (tmp_path / "chat_template.jinja").unlink()
    assert not _wants(tmp_path, "new", "").has_template


def test_a_template_for_tools_beside_the_usual_one(tmp_path: Path) -> None:
    """The list of templates in tokenizer_config.json is read whole."""
    both = [
        {"name": "default", "template": "x"},
        {"name": "tool_use", "template": CASES["Mistral"][1]},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": both}))

    assert "mistral" == _wants(tmp_path, "mistral", "").set["TOOL_CALL_PARSER"]


# What the template says of the tool's answer, and the parser never sees.
OF_THE_TEMPLATE = {
    "ipython",
    "<|eot_id|>",
    "```json",
    "thinking",
    "enable_thinking",
    "<｜Assistant｜>",
}


REGISTRIES = {
    "vllm.tool_parsers": _TOOL_PARSERS_TO_REGISTER,
    "vllm.reasoning": _REASONING_PARSERS_TO_REGISTER,
}
ELSEWHERE = {
    "openai": "vllm.parser.harmony",
    "openai_gptoss": "vllm.parser.harmony",
}


def _source(name: str) -> str:
    """Return the source of vLLM's parsers of a name, of thoughts and of tools."""
    modules = {ELSEWHERE[name]} if name in ELSEWHERE else set()
    for room, registry in REGISTRIES.items():
        if name in registry:
            module, cls = registry[name]
            parser = getattr(importlib.import_module(f"{room}.{module}"), cls)
            engine = getattr(parser, "_parser_engine_cls", object)
            modules |= {base.__module__ for base in (*parser.__mro__, *engine.__mro__)}
    modules = {module for module in modules if module.startswith("vllm.")}
    return "".join(inspect.getsource(importlib.import_module(module)) for module in modules)


@pytest.mark.parametrize(
    ("rows", "room"), [(wants.TOOLS, "vllm.tool_parsers"), (wants.THOUGHTS, "vllm.reasoning")]
)
def test_vllms_parsers_look_for_these_marks(rows: tuple[wants.Row, ...], room: str) -> None:
    """Every name is one of the installed vLLM's, and its parser's source has the marks."""
    lost = {
        (name, mark)
        for name, marks, _ in rows
        for mark in marks
        if mark not in OF_THE_TEMPLATE and mark not in _source(name)
    }

    assert set() == {name for name, *_ in rows} - set(REGISTRIES[room])
    assert set() == lost
