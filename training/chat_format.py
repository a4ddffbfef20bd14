"""Renders a conversation to the text that the model sees.

`render` is the fast equivalent of `chat_template.jinja` for what the corpus holds; `render_with_template` runs the
template itself as `transformers` does. `tests/test_chat_format.py` shows that both agree, and agree with Qwen3's.
"""

import json
from functools import lru_cache
from pathlib import Path

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()
START, END = "<|im_start|>", "<|im_end|>"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
_TOOLS_HEAD = ("# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
               "signatures within <tools></tools> XML tags:\n<tools>")
_TOOLS_TAIL = ("\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
               "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
               "<args-json-object>}\n</tool_call>")


def render(messages, tools=None, add_generation_prompt=False, enable_thinking=None):
    """The conversation as text, equal to what the chat template gives."""
    parts = []
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    if tools:
        head = "" if system is None else system + "\n\n"
        listed = "".join("\n" + _json(tool) for tool in tools)
        parts.append(f"{START}system\n{head}{_TOOLS_HEAD}{listed}{_TOOLS_TAIL}{END}\n")
    elif system is not None:
        parts.append(f"{START}system\n{system}{END}\n")
    last_question = max((index for index, message in enumerate(messages) if message["role"] == "user"),
                        default=len(messages) - 1)
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            parts.append(_assistant(message, index > last_question, index == len(messages) - 1))
        elif role == "tool":
            opens = index == 0 or messages[index - 1]["role"] != "tool"
            closes = index == len(messages) - 1 or messages[index + 1]["role"] != "tool"
            parts.append((f"{START}user" if opens else "") + f"\n<tool_response>\n{message['content']}\n</tool_response>"
                         + (f"{END}\n" if closes else ""))
        elif role == "user" or index > 0:
            parts.append(f"{START}{role}\n{message['content']}{END}\n")
    if add_generation_prompt:
        parts.append(f"{START}assistant\n" + (EMPTY_THOUGHT if enable_thinking is False else ""))
    return "".join(parts)


def _assistant(message, is_recent, is_last):
    content, thought = message["content"], message.get("reasoning_content") or ""
    text = f"{START}assistant\n"
    if is_recent and (is_last or thought):
        text += f"<think>\n{thought}\n</think>\n\n"
    text += content
    for number, call in enumerate(message.get("tool_calls") or []):
        called = call["function"]
        text += "\n" if content or number else ""
        text += f'<tool_call>\n{{"name": "{called["name"]}", "arguments": {_json(called["arguments"])}}}\n</tool_call>'
    return text + f"{END}\n"


def _json(value):
    return json.dumps(value, ensure_ascii=False)


def render_with_template(request, template=TEMPLATE):
    """The request object rendered by a Jinja template, in the environment that `transformers` uses."""
    return _compiled(template).render(**request)


@lru_cache
def _compiled(template):
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)
