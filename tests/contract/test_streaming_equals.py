"""Streaming text equals non-streaming text, for a real model in float32, one at a time."""

import pytest

from served import Served, text

pytestmark = pytest.mark.timeout(300)

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "List three colours:",
    "The quick brown fox",
    "Q: What is water?\nA:",
    "import os\nimport sys\n",
    "In the year 2050",
    "你好，请介绍一下你自己。",
    "中国的首都是",
    "今天天气怎么样？",
    "日本の首都は",
    "안녕하세요",
    "Привет, как дела?",
    "مرحبا",
    "¿Cómo estás?",
    "Où est la gare ?",
    "Schöne Grüße aus München",
    "😀😃😄",
    "I ❤️ 🍕 and 👩‍👩‍👧‍👦",
    "Emoji story: 🐶🐱",
    "Write a poem about the sea 🌊",
    "<html><body>",
    '{"name": "Ada", "age":',
    "Say [DONE] when you are done.",
    'data: {"error": "no"}',
    "A\tB\tC\n1\t2\t",
    "   leading spaces",
]
STOPS: list[list[str]] = [[], ["the end"], [". "], ["\n\n"], ["e t"]]


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, marks=[pytest.mark.slow] if index != 10 else [])
        for index in range(len(PROMPTS))
    ],
)
def test_streaming_equals_not_streaming(smollm2: Served, index: int) -> None:
    """However an answer is cut into posts, its text is the same, on both paths."""
    prompt, stop = PROMPTS[index], STOPS[index % len(STOPS)]
    asked = {"temperature": 0, "max_tokens": 24} | ({"stop": stop} if stop else {})
    native = {"prompt": prompt, "sampling_params": asked}
    model = smollm2.client.models.list().data[0].id
    ask = smollm2.client.completions.create
    chunks = ask(model=model, prompt=prompt, stream=True, **asked)
    texts = [
        text(smollm2.run(native)),
        text(smollm2.run(native | {"stream": True})),
        ask(model=model, prompt=prompt, **asked).choices[0].text,
        "".join(chunk.choices[0].text for chunk in chunks if chunk.choices),
    ]

    assert [texts[0]] * 4 == texts
