"""The held-out combinations are not in the corpus, and the judge accepts right answers only."""

import random
import re

import evaluate
from corpus import arithmetic, conversation, evaluation, facts, json_skill, memory, stories, tools
from corpus.chance import held_out


def answer_of(item):
    """The expected answer as a model would write it."""
    import json
    if item["check"] == "json":
        text = json.dumps(item["expect"])
    elif item["check"] == "tool_call":
        text = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in item["expect"])
    else:
        text = item["expect"]
    return f"<think>\nA thought.\n</think>\n\n{text}" if item["enable_thinking"] else text


def all_items(count):
    return [item for skill in evaluation.SKILLS for item in evaluation.items(skill, count)]


def test_the_judge_accepts_the_expected_answer_and_no_other():
    for item in all_items(40):
        right = answer_of(item)
        assert evaluate.judge(item, right), item
        assert not evaluate.judge(item, right + " And more."), item
        assert not evaluate.judge(item, right.replace("<think>\nA thought.\n</think>\n\n", "")) or not item["enable_thinking"]
        assert not evaluate.judge(item | {"enable_thinking": not item["enable_thinking"]}, right), item


def test_items_are_different_and_the_same_each_time():
    for skill in evaluation.SKILLS:
        items = evaluation.items(skill, 100)
        assert items == evaluation.items(skill, 100)
        assert len({str(item) for item in items}) == len(items) == 100, skill


def test_skills_keep_to_their_side_of_the_split():
    rng = random.Random(3)
    for want in (False, True):
        for _ in range(500):
            offered = tools.offers(rng)
            made = [arithmetic.make(rng, want), json_skill.make(rng, want), tools.make(rng, offered, want)]
            made.append(facts.make(rng, want))
            for exchange in made:
                assert not exchange.key or held_out(*exchange.key) == want
        story = stories.write(rng, want_held_out=want)
        assert held_out(*story.key, percent=4) == want


def test_no_held_out_sum_is_in_the_corpus():
    written = "\n".join(conversation.shard(5, 3000))
    pairs = re.findall(r"\n(\d+) ([+-]) (\d+) = -?\d+<", written)
    assert len(pairs) > 500
    for a, sign, b in pairs:
        a, b = int(a), int(b)
        if max(a, b) <= 99:
            key = ("sum", min(a, b), max(a, b)) if sign == "+" else ("difference", a, b)
            assert not held_out(*key), key


def test_no_held_out_memory_is_in_the_corpus():
    rng = random.Random(11)
    statements = [statement.replace("{v}.", "") for statement in memory._ATTRIBUTES["name"][0] if statement.endswith("{v}.")]
    asked = 0
    for _ in range(3000):
        messages = conversation.make(rng).messages or []
        said = [(index, message["content"]) for index, message in enumerate(messages) if message["role"] == "user"]
        names = [message["content"].removeprefix("Your name is ").removesuffix(".") for message in messages
                 if message["role"] == "assistant" and message["content"].startswith("Your name is ")]
        for name in names:
            told = [place for place, (_, text) in enumerate(said) if text in [s + name + "." for s in statements]]
            answered = [place for place, (index, _) in enumerate(said)
                        if index + 1 < len(messages) and messages[index + 1]["content"] == f"Your name is {name}."]
            for question in answered if told else []:
                asked += 1
                assert not held_out("memory", "name", name, question - told[-1] - 1)
    assert asked > 100
