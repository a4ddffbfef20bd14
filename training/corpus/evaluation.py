"""Writes the held-out evaluation: items whose combination is never in the corpus. It knows no model."""

import random

from . import arithmetic, conversation, facts, json_skill, memory, tools
from .chance import chance, held_out

SKILLS = ("arithmetic", "facts", "memory", "json", "tool_calls", "tool_answers")
_MOST_CHARACTERS = 6000


def items(skill, count, seed=20_261_121):
    """`count` different items of one skill (fewer where there are not so many combinations)."""
    rng = random.Random(f"{seed} {skill}")
    made, seen = [], set()
    for _ in range(count * 60):
        item = _MAKERS[skill](rng)
        signature = str(item["messages"][-1]) + str(item["expect"])
        if signature not in seen:
            seen.add(signature)
            made.append({"skill": skill, **item})
        if len(made) == count:
            break
    return made


def held_out_stories(count, seed=20_261_121):
    """Plain stories whose (plot, hero, name) is not in the corpus."""
    rng = random.Random(seed)
    return [conversation.plain_story(rng, want_held_out=True).text for _ in range(count)]


def _item(rng, messages, exchange, offered=None):
    """The request up to the last assistant message, which is what is expected."""
    system = [{"role": "system", "content": conversation.any_system(rng)}] if chance(rng, 0.25) else []
    request = system + conversation.with_thoughts(messages, False)
    thinks = chance(rng, 0.5)
    item = {"messages": request, "enable_thinking": thinks, "expect": exchange.expect, "check": exchange.check}
    return {**item, "tools": [offer.schema for offer in offered]} if offered else item


def _with_history(make):
    """Items of a skill that needs no history; a third of them has one."""
    def item(rng):
        history = [m for _ in range(rng.randint(1, 3)) for e in conversation.filler(rng) for m in e.messages]
        exchange = make(rng, want_held_out=True)
        return _item(rng, (history if chance(rng, 0.33) else []) + exchange.messages[:1], exchange)
    return item


def _memory(rng):
    """Something told, `gap` exchanges of other skills, then the question."""
    while True:
        attribute = memory.any_attribute(rng)
        value, gap = memory.any_value(rng, attribute), rng.choice([0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 8])
        if held_out("memory", attribute, value, gap):
            break
    between = [exchange for _ in range(gap) for exchange in conversation.filler(rng)][:gap]
    before = conversation.filler(rng) if chance(rng, 0.3) else []
    exchanges = before + [memory.tell(rng, attribute, value)] + between + [memory.ask(rng, attribute, value)]
    messages = [message for exchange in exchanges for message in exchange.messages]
    if len(str(messages)) > _MOST_CHARACTERS:
        return _memory(rng)
    return _item(rng, messages[:-1], exchanges[-1])


def _tool_call(rng):
    offered, exchange = _tool_exchange(rng)
    return _item(rng, exchange.messages[:1], exchange, offered)


def _tool_answer(rng):
    offered, exchange = _tool_exchange(rng)
    exchange.expect, exchange.check = exchange.messages[-1]["content"], "exact"
    return _item(rng, exchange.messages[:-1], exchange, offered)


def _tool_exchange(rng):
    offered = tools.offers(rng)
    return offered, tools.make(rng, offered, want_held_out=True)


_MAKERS = {
    "arithmetic": _with_history(arithmetic.make), "facts": _with_history(facts.make), "json": _with_history(json_skill.make),
    "memory": _memory, "tool_calls": _tool_call, "tool_answers": _tool_answer,
}
