"""Tool calls in Qwen3's format: which tools are offered, the call, its result, the answer from the result.

Held out: (family, arguments). It knows nothing of other skills.
"""

import json

from .chance import chance, held_out
from .exchange import Exchange, said
from .tool_families import BY_NAME, FAMILIES

NO_TOOL = "I cannot do that without a tool."
TOO_HARD = "That is too hard for me. I can only add and subtract numbers up to 99."
_ERRORS = ["not found", "service not available", "permission denied", "no connection", "unknown value", "timed out"]


class Offer:
    """One tool as offered: a family with its names chosen; `schema` is what the request carries."""

    def __init__(self, rng, family):
        self.family = family
        self.name = rng.choice(family.names)
        self.renamed = {ours: rng.choice(names) for ours, (names, _, _) in family.parameters.items()}
        properties = {}
        for ours, (_, kind, descriptions) in family.parameters.items():
            properties[self.renamed[ours]] = {"type": kind}
            if chance(rng, 0.7):
                properties[self.renamed[ours]]["description"] = rng.choice(descriptions)
        parameters = {"type": "object", "properties": properties}
        if chance(rng, 0.8):
            parameters["required"] = list(properties)
        function = {"name": self.name, "description": rng.choice(family.descriptions), "parameters": parameters}
        self.schema = {"type": "function", "function": function}

    def call(self, arguments):
        """The call of these arguments, in the names of the schema and in its order."""
        return {"name": self.name, "arguments": {theirs: arguments[ours] for ours, theirs in self.renamed.items()}}


def offers(rng, wanted=(), most=4, without=()):
    """Some tools in random order, with no name twice, the wanted families among them."""
    others = [family for family in FAMILIES if family.name not in wanted and family.name not in without]
    extra = rng.sample(others, rng.randint(0 if wanted else 1, max(1, most - len(wanted))))
    chosen = [Offer(rng, family) for family in [BY_NAME[name] for name in wanted] + extra]
    rng.shuffle(chosen)
    return chosen


def make(rng, offered, want_held_out=False):
    """A question for one of the offered tools, with its call or calls, results and the answer."""
    offer = rng.choice(offered)
    family = offer.family
    if family.pairs and chance(rng, 0.2):
        return _pair(rng, offer, want_held_out)
    arguments, key = _arguments(rng, family, want_held_out)
    question = rng.choice(family.asks).format(**arguments)
    failed = chance(rng, 0.06)
    result = {"error": rng.choice(_ERRORS)} if failed else family.result(rng, arguments)
    answer = f"That did not work: {result['error']}." if failed else family.answer(arguments, result)
    return _exchange(question, offer, [arguments], [result], answer, key)


def refuse(rng):
    """A question that would need a tool, in a conversation that offers none."""
    family = rng.choice(FAMILIES)
    arguments, _ = _arguments(rng, family, want_held_out=False)
    if chance(rng, 0.15):
        a, b, sign = rng.randint(2, 99), rng.randint(2, 20), rng.choice(["times", "*", "x", "divided by", "/"])
        question = rng.choice([f"What is {a} {sign} {b}?", f"{a} {sign} {b}", f"How much is {a} {sign} {b}?"])
        return said("refusal", question, "I only know plus and minus.", TOO_HARD)
    question = rng.choice(family.asks).format(**arguments)
    if family.name == "calculator":
        if all(len(part) < 3 for part in arguments["expression"].split(" ")):
            return refuse(rng)  # a sum that the model can do
        return said("refusal", question, "These numbers are too big for me.", TOO_HARD)
    return said("refusal", question, "That would need a tool, and none is offered.", NO_TOOL)


def _pair(rng, offer, want_held_out):
    """Two calls at once for two values of the first argument."""
    family = offer.family
    first, key = _arguments(rng, family, want_held_out)
    second, _ = _arguments(rng, family, want_held_out)
    while second == first:
        second, _ = _arguments(rng, family, want_held_out)
    values = [next(iter(arguments.values())) for arguments in (first, second)]
    question = rng.choice(family.pairs).format(x=values[0], y=values[1])
    results = [family.result(rng, arguments) for arguments in (first, second)]
    answer = " ".join(family.answer(*each) for each in zip((first, second), results))
    return _exchange(question, offer, [first, second], results, answer, key)


def _arguments(rng, family, want_held_out):
    while True:
        arguments = family.arguments(rng)
        key = ("tool", family.name, json.dumps(arguments, sort_keys=True))
        if held_out(*key) == want_held_out:
            return arguments, key


def _exchange(question, offer, arguments, results, answer, key):
    calls = [offer.call(each) for each in arguments]
    thought = f"The tool {offer.name} can do this."
    if len(calls) > 1:
        thought = f"The tool {offer.name} can do this, with {len(calls)} calls."
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "reasoning_content": thought,
         "tool_calls": [{"type": "function", "function": call} for call in calls]},
        *({"role": "tool", "content": json.dumps(result, ensure_ascii=False)} for result in results),
        {"role": "assistant", "content": answer, "reasoning_content": "The result is there, now I answer."},
    ]
    return Exchange("tools", messages, expect=calls, check="tool_call", key=key)
