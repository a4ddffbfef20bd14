"""Puts exchanges of all skills together into documents: conversations and plain stories.

A document is what the model reads at once. It ends with an assistant turn, with or without its thought, rendered as the
chat template renders it; plain stories (for completion without a template) carry no markup.
"""

import random
from dataclasses import dataclass

import chat_format

from . import arithmetic, facts, json_skill, memory, smalltalk, stories, story_chat, tools
from .chance import chance, held_out, made_up_word
from .exchange import typed

SYSTEMS = ["You are a helpful assistant.", "You are Fornax, a small and friendly model.", "Answer briefly.",
           "You are a kind storyteller.", "You are a helpful assistant that answers in one sentence.", "Be polite.",
           "You are a careful assistant. Use the tools when they fit.", "You help children with their questions.",
           "You are a small demonstration model.", "Answer in plain English."]
_MOST_CHARACTERS = 11_000  # about 2,048 tokens; what is longer is dropped when it is packed: a conversation fits the context


@dataclass
class Document:
    """One document of the corpus, as messages (a conversation) or as text (a plain story)."""

    messages: list[dict] | None = None
    tools: list[dict] | None = None
    text: str | None = None

    def render(self):
        """The text that the model reads, its end marker included."""
        if self.text is not None:
            return self.text + chat_format.END
        return chat_format.render(self.messages, self.tools).removesuffix("\n")


def make(rng):
    """One document."""
    roll = rng.random()
    if roll < 0.10:
        return plain_story(rng)
    if roll < 0.32:
        return _finish(rng, *_with_tools(rng))
    return _finish(rng, _exchanges(rng, _length(rng)), None)


def plain_story(rng, want_held_out=False):
    """A story without any markup, sometimes under its title."""
    story = stories.write(rng, want_held_out=want_held_out)
    return Document(text=f"{story.title}\n\n{story.text}" if chance(rng, 0.4) else story.text)


def any_system(rng):
    """A system message, sometimes with a name that no list has."""
    if chance(rng, 0.2):
        return f"You are {made_up_word(rng).capitalize()}, a helpful assistant."
    return rng.choice(SYSTEMS)


def filler(rng, without_arithmetic=False, without_tools=True):
    """One exchange of any skill that needs no other turn; a story may bring a question about it."""
    if without_tools and chance(rng, 0.04):
        return [tools.refuse(rng)]
    roll = rng.random()
    if roll < 0.25 and not without_arithmetic:
        return [typed(rng, arithmetic.make(rng))]
    if roll < 0.50:
        return [typed(rng, facts.make(rng))]
    if roll < 0.66:
        return [json_skill.make(rng)]
    if roll < 0.80:
        return [smalltalk.make(rng)]
    told, story = story_chat.make(rng)
    typed(rng, told)
    more = [typed(rng, story_chat.follow_up(rng, story))] if chance(rng, 0.25) else []
    return [told, *more, story_chat.again(rng)] if chance(rng, 0.08) else [told, *more]


def _length(rng):
    """How many exchanges: mostly few, now and then a long conversation."""
    roll = rng.random()
    return 1 if roll < 0.42 else rng.randint(2, 4) if roll < 0.85 else rng.randint(5, 9) if roll < 0.96 else rng.randint(10, 22)


def _exchanges(rng, count, without_arithmetic=False, without_tools=True):
    """Exchanges of all skills; in longer conversations things told are asked for later."""
    chosen = [exchange for _ in range(count) for exchange in filler(rng, without_arithmetic, without_tools)]
    if len(chosen) > 1 and chance(rng, 0.75) or chance(rng, 0.15):
        remember(rng, chosen, rng.randint(1, 3 if count > 3 else 2))
    return chosen


def remember(rng, exchanges, count):
    """Inserts `count` attributes, each told and asked for later, and sometimes a question about one never told."""
    told = set()
    for _ in range(count):
        attribute = memory.any_attribute(rng)
        if attribute in told:
            continue
        told.add(attribute)
        value = memory.any_value(rng, attribute)
        before = rng.randint(0, len(exchanges) // 2)
        exchanges.insert(before, memory.tell(rng, attribute, value))
        exchanges.insert(rng.randint(before + 1, len(exchanges)), typed(rng, memory.ask(rng, attribute, value)))
    if chance(rng, 0.25):
        attribute = memory.any_attribute(rng)
        if attribute not in told:
            exchanges.insert(rng.randint(0, len(exchanges)), typed(rng, memory.ask_untold(rng, attribute)))


def _without_held_out(exchanges):
    """Drops each question whose (attribute, value, gap) is held out; earlier drops count."""
    kept = []
    for exchange in exchanges:
        if exchange.key[:1] != ("memory",) or not held_out(*exchange.key, memory.gap(kept, exchange)):
            kept.append(exchange)
    return kept


def _with_tools(rng):
    """A conversation with tools offered: used, or of no use for what is asked."""
    calculator = chance(rng, 0.15)
    offered = tools.offers(rng, wanted=("calculator",) if calculator else (), without=() if calculator else ("calculator",))
    exchanges = _exchanges(rng, rng.choice([0, 0, 0, 0, 1, 1, 2]), without_arithmetic=calculator, without_tools=False)
    for _ in range(rng.choice([1, 1, 1, 2]) if chance(rng, 0.8) or not exchanges else 0):
        exchanges.insert(rng.randint(0, len(exchanges)), tools.make(rng, offered))
    return exchanges, [offer.schema for offer in offered]


def _finish(rng, exchanges, offered):
    """Joins the exchanges, ends at an assistant turn, and keeps or drops the thoughts."""
    messages = [{"role": "system", "content": any_system(rng)}] if chance(rng, 0.25) else []
    budget = _MOST_CHARACTERS - (sum(len(str(tool)) for tool in offered) if offered else 0)
    for exchange in _without_held_out(exchanges):
        budget -= sum(len(str(message)) for message in exchange.messages)
        if budget < 0 and len(messages) > 1:
            break
        messages += exchange.messages
    if messages[-1]["role"] == "assistant" and messages[-2]["role"] == "tool" and chance(rng, 0.5):
        while messages[-1]["role"] == "tool" or not messages[-1].get("tool_calls"):
            messages.pop()
    thinks = chance(rng, 0.5)
    return Document(with_thoughts(messages, thinks), offered)


def with_thoughts(messages, thinks):
    """The messages with their thoughts, or without any."""
    if thinks:
        return messages
    return [{key: value for key, value in message.items() if key != "reasoning_content"} for message in messages]


def shard(seed, count):
    """`count` documents as text, from one seed."""
    rng = random.Random(seed)
    return [make(rng).render() for _ in range(count)]
