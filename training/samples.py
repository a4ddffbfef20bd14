"""Writes samples to read: stories at temperature 0.7 and a few conversations. It judges nothing."""

import chat_format
from evaluate import Generator

_STORIES = [
    "Tell me a story about a fox", "Tell me a story about a fox", "Write a short story about a brave rabbit and a lost key",
    "Tell me a story about an owl and a mouse.", "Write a story about a robot in the big city.", "tell me a story",
    "Can you tell me a bedtime story about a whale?", "Tell me a story about a girl named Mina.",
    "Write a story about honesty.", "Tell me a story about a platypus who lost his hat", "Tell me a story about a spaceship",
    "Write a funny story about a shy dragon",
]
_QUESTIONS = [
    "Hello!", "Who are you?", "What is 47 + 85?", "12-30", "What is the capital of France?", "Who is the president of France?",
    "Make a JSON object with name \"Anna\" and age 31.", "What is the weather in Paris?", "Tell me a joke.",
    "My name is Theodora.", "What is 3 times 4?", "How do I build a house?", "Thanks, bye",
]
_RAW = ["Once upon a time", "The Fox and the Golden Key\n\n", "There once was a little boat"]


def write(model, tokenizer):
    """All samples as one text."""
    generator = Generator(model, tokenizer)
    parts = []
    for thinking in (False, True):
        prompts = [chat_format.render([{"role": "user", "content": text}], None, True, thinking) for text in _STORIES]
        outputs = generator.generate(prompts, 500, temperature=0.7, top_p=0.95, seed=3)
        parts += [f"### {text} (thinking {'on' if thinking else 'off'})\n{output}" for text, output in zip(_STORIES, outputs)]
        prompts = [chat_format.render([{"role": "user", "content": text}], None, True, thinking) for text in _QUESTIONS]
        outputs = generator.generate(prompts, 150, temperature=0.7, top_p=0.95, seed=4)
        parts += [f"### {text} (thinking {'on' if thinking else 'off'})\n{output}" for text, output in zip(_QUESTIONS, outputs)]
    outputs = generator.generate(_RAW, 400, temperature=0.7, top_p=0.95, seed=5)
    parts += [f"### {text!r} (plain completion)\n{output}" for text, output in zip(_RAW, outputs)]
    return "\n\n".join(parts) + "\n"
