"""The fast renderer equals the chat template, and both equal Qwen3's template on ordinary requests."""

import os
import random
from pathlib import Path

import pytest

import chat_format
from corpus import conversation

_SHARED = Path(os.environ.get("FORNAX_SHARED", Path(__file__).parents[3] / "shared"))
_QWEN3 = _SHARED / "templates" / "Qwen-Qwen3-0.6B.jinja"


def requests(count):
    """Requests from the corpus, ending with an answer or, cut before it, with a generation prompt."""
    rng = random.Random(7)
    while count:
        document = conversation.make(rng)
        if document.messages is None:
            continue
        count -= 1
        yield {"messages": document.messages, "tools": document.tools, "add_generation_prompt": False}
        for thinking in (None, True, False):
            request = {"messages": document.messages[:-1], "tools": document.tools, "add_generation_prompt": True}
            yield request if thinking is None else request | {"enable_thinking": thinking}


def test_the_fast_renderer_equals_the_template():
    for request in requests(200):
        assert chat_format.render(**request) == chat_format.render_with_template(request)


@pytest.mark.skipif(not _QWEN3.exists(), reason="needs ../shared: Qwen3's chat template")
def test_the_template_equals_qwen3():
    qwen3 = _QWEN3.read_text()
    for request in requests(200):
        assert chat_format.render_with_template(request) == chat_format.render_with_template(request, qwen3)


def test_odd_requests_are_rendered_or_refused():
    render = chat_format.render_with_template
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render({"messages": [{"role": "user", "content": parts}]}) == "<|im_start|>user\nHello<|im_end|>\n"
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": "{\"a\": 1}"}]}
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in render({"messages": [call]})
    with pytest.raises(ValueError, match="unknown role"):
        render({"messages": [{"role": "robot", "content": "x"}]})
    with pytest.raises(ValueError, match="text only"):
        render({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
