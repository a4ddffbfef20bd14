"""One exchange of a conversation: what the user says, what the model thinks and answers. It knows no skill."""

from dataclasses import dataclass, field

from .chance import casual


@dataclass
class Exchange:
    """Messages from a user turn to the final answer, in the request format of chat APIs.

    Assistant messages carry their thought as `reasoning_content`; the renderer drops it where it must.
    `expect` and `check` say how the last assistant message of an evaluation item is judged.
    """

    skill: str
    messages: list[dict]
    tools: list[dict] | None = None
    expect: object = None
    check: str = "exact"
    key: tuple = field(default=())


def typed(rng, exchange):
    """The same exchange with the question as people type it."""
    exchange.messages[0]["content"] = casual(rng, exchange.messages[0]["content"])
    return exchange


def said(skill, user, thought, answer, *, expect=None, check="exact", key=()):
    """An exchange of one question and one answer."""
    messages = [{"role": "user", "content": user},
                {"role": "assistant", "content": answer, "reasoning_content": thought}]
    return Exchange(skill, messages, expect=answer if expect is None else expect, check=check, key=key)
