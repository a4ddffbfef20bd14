"""Questions about the closed list of facts, in several phrasings; a (fact, phrasing) pair may be held out.

Beyond the list the model says that it does not know. It knows nothing of conversations.
"""

import re

from . import facts_data as data
from . import memory, story_words as words
from .chance import capitalised, chance, held_out, made_up_name, made_up_word, vary, with_article
from .exchange import said

_PHRASINGS = {
    "capital": ["What is the capital of {x}?", "What's the capital of {x}?", "Which city is the capital of {x}?",
                "Name the capital of {x}.", "Tell me the capital of {x}.", "Do you know the capital of {x}?",
                "capital of {x}", "{x}'s capital?", "What is the capital city of {x}?", "Can you tell me {x}'s capital?",
                "Capital of {x}?", "What's the capital city of {x}?", "The capital of {x} is?", "Which city is {x}'s capital?"],
    "country": ["{y} is the capital of which country?", "Which country has the capital {y}?",
                "What country is {y} the capital of?", "Of which country is {y} the capital?",
                "Name the country whose capital is {y}."],
    "colour": ["What colour is {x}?", "What color is {x}?", "Which colour does {x} have?", "Tell me the colour of {x}.",
               "What is the colour of {x}?", "Do you know what colour {x} is?", "What's the color of {x}?"],
    "young": ["What is a baby {x} called?", "What do you call a baby {x}?", "What is the young of a {x} called?",
              "What's a baby {x} called?", "Name for a baby {x}?", "Tell me what a baby {x} is called.",
              "Do you know the name for a young {x}?"],
    "sound": ["What sound does {ax} make?", "Which sound does {ax} make?", "What noise does {ax} make?",
              "Tell me the sound of {ax}.", "What does {ax} say?", "How does {ax} sound?",
              "Do you know what sound {ax} makes?"],
    "home": ["Where does {ax} live?", "What is the home of {ax} called?", "What do you call the home of {ax}?",
             "Tell me where {ax} lives.", "In what does {ax} live?", "What's the home of {ax}?"],
    "opposite": ["What is the opposite of {x}?", "What's the opposite of {x}?", "Tell me the opposite of {x}.",
                 "opposite of {x}", "Name the opposite of {x}.", "Which word is the opposite of {x}?",
                 "Do you know the opposite of {x}?"],
    "after": ["What [day|month] comes after {x}?", "Which [day|month] follows {x}?", "What comes after {x}?",
              "What is the [day|month] after {x}?", "Tell me the [day|month] after {x}.", "After {x} comes which [day|month]?"],
    "before": ["What [day|month] comes before {x}?", "Which [day|month] is before {x}?", "What comes before {x}?",
               "What is the [day|month] before {x}?", "Tell me the [day|month] before {x}."],
    "sides": ["How many sides does a {x} have?", "How many sides has a {x}?", "What number of sides does a {x} have?",
              "Tell me how many sides a {x} has.", "A {x} has how many sides?", "Number of sides of a {x}?"],
    "legs": ["How many legs does {ax} have?", "How many legs has {ax}?", "Tell me how many legs {ax} has.",
             "What number of legs does {ax} have?", "{Ax} has how many legs?", "Number of legs of {ax}?"],
    "quantity": ["How many {u} are in {x}?", "How many {u} are there in {x}?", "How many {u} does {x} have?",
                 "What is the number of {u} in {x}?", "Tell me how many {u} {x} has.", "Number of {u} in {x}?",
                 "Do you know how many {u} are in {x}?"],
    "single": ["What is {q}?", "What's {q}?", "Tell me {q}.", "Name {q}.", "Do you know {q}?", "Can you tell me {q}?",
               "{Q}?", "Could you tell me {q}, please?"],
}


def _facts():
    """Every fact as (kind, slots, answer)."""
    for country, city in data.CAPITALS.items():
        yield "capital", {"x": country}, f"The capital of {country} is {city}."
        if country not in data.SHARED_CAPITALS:
            yield "country", {"y": city}, f"{city} is the capital of {country}."
    for thing, colour in data.COLOURS.items():
        yield "colour", {"x": thing}, f"{capitalised(thing)} is {colour}."
    for animal, young in data.YOUNG.items():
        yield "young", {"x": animal}, f"A baby {animal} is called {with_article(young)}."
    for animal, sound in data.SOUNDS.items():
        yield "sound", {"x": animal}, f"{capitalised(with_article(animal))} {sound}."
    for animal, home in data.HOMES.items():
        yield "home", {"x": animal}, f"{capitalised(with_article(animal))} lives in {home}."
    for one, other in data.OPPOSITES.items():
        yield "opposite", {"x": one}, f"The opposite of {one} is {other}."
    for cycle, unit in ((data.DAYS, "day"), (data.MONTHS, "month")):
        for index, name in enumerate(cycle):
            following, previous = cycle[(index + 1) % len(cycle)], cycle[index - 1]
            yield "after", {"x": name, "unit": unit}, f"{following} comes after {name}."
            yield "before", {"x": name, "unit": unit}, f"{previous} comes before {name}."
    for shape, count in data.SIDES.items():
        yield "sides", {"x": shape}, f"{capitalised(with_article(shape))} has {count} sides."
    for animal, count in data.LEGS.items():
        yield "legs", {"x": animal}, f"{capitalised(with_article(animal))} has {count} legs."
    for unit, whole, count in data.QUANTITIES:
        yield "quantity", {"x": whole, "u": unit}, f"There are {count} {unit} in {whole}."
    for name, asked, answer in data.SINGLE:
        yield "single", {"name": name, "q": asked}, answer


FACTS = list(_facts())
_ABOUT = {"capital": "the capital of {x}", "country": "the country whose capital is {y}", "colour": "the colour of {x}",
          "young": "the young of the {x}", "sound": "the sound of the {x}", "home": "the home of the {x}",
          "opposite": "the opposite of {x}", "after": "what comes after {x}", "before": "what comes before {x}",
          "sides": "the sides of a {x}", "legs": "the legs of the {x}", "quantity": "the number of {u} in {x}",
          "single": "{q}"}
UNKNOWN = "I do not know that. I am a small model and only know a short list of facts."
_OUTSIDE = [
    "Who won the [world cup|election|race] in {year}?", "What is the population of {city}?", "How tall is {name}?",
    "What is the meaning of {made}?", "Who is {made}?", "When was {name} born?", "What is the phone number of {name}?",
    "What happened in {year}?", "Who wrote {made}?", "Where is {made}?", "What is the price of {made}?",
    "Explain the theory of {made}.", "What is the capital of {made}?", "What colour is a {low}?",
    "What is a baby {low} called?", "What is the opposite of {low}?", "How many legs does a {low} have?",
    "Who is the president of {made}?", "What is the best {low} in {city}?", "How do I {verb} a {thing}?",
    "How do you {verb} a {thing}?", "Why is the {thing} [so|] {how}?", "Where can I {verb} a {thing}?",
    "Explain [the {thing}|{city}|how a {thing} works] [to me|].", "Write [an essay|a letter|a book] about the {thing}.",
    "What is the difference between a {thing} and a {low}?", "Why do people {verb} a {thing}?", "Who invented the {thing}?",
    "When was the {thing} invented?", "What is the history of {city}?", "How far is it from {city} to {made}?",
    "Can you help me with my [homework|work|{thing}]?", "What should I [eat|wear|do|read|cook] [today|tonight|now]?",
    "Give me a recipe for {food}.", "How do I cook {food}?", "Plan a trip to {city}.", "What can I see in {city}?",
    "Summarize [this text|this article|the news|a book] [for me|].", "Fix my code.", "Write a [Python|Rust|Java] program that [sorts|counts] {thing}s.",
    "Is a {thing} better than a {thing2}?", "What do you think about {food}?", "Recommend a [book|film|song|game].",
    "What is [love|time|music|art|money|a computer|electricity|gravity|the internet|a language model]?",
    "Solve x + {small} = {year}.", "How many people live in {city}?", "Who was {name}?", "What is the news today?",
    "What is the biggest {thing} in the world?", "Write a haiku about a {thing}.", "Give me five {thing}s.",
    "How does a {thing} work?", "Tell me about {city}.", "Tell me about the {thing}.", "Tell me something about {name}.",
    "What does {made} mean?", "Can you draw a {thing}?", "Which {thing} should I buy?", "How old is {city}?",
    "Who is the [president|king|queen|mayor] of [{city}|France|Spain|England|Japan]?", "Should I {verb} my {thing}?",
]


def make(rng, want_held_out=False):
    """One question from the list, or (only in training) one from outside it."""
    if not want_held_out and chance(rng, 0.07):
        return _outside(rng)
    while True:
        kind, slots, answer = rng.choice(FACTS)
        phrasing = rng.randrange(len(_PHRASINGS[kind]))
        key = ("fact", answer, phrasing)
        if held_out(*key) == want_held_out:
            break
    template = _PHRASINGS[kind][phrasing].replace("[day|month]", slots.get("unit", ""))
    filled = dict(slots, q=vary(rng, slots.get("q", "")))
    filled["Q"] = capitalised(filled["q"])
    if "x" in slots:
        filled["ax"] = with_article(slots["x"])
        filled["Ax"] = capitalised(filled["ax"])
    about = _ABOUT[kind].format(**filled)
    return said("facts", template.format(**filled), f"The question is about {about}. {answer}", answer, key=key)


def _outside(rng):
    word = made_up_word(rng)
    slots = {"thing2": rng.choice(words.OBJECTS), "food": rng.choice(memory.FOODS), "small": rng.randint(2, 9), "verb": rng.choice(["build", "repair", "buy", "cook", "sell", "make", "find", "use", "clean", "write", "open"]),
             "thing": rng.choice(words.OBJECTS + words.THINGS), "how": rng.choice(["big", "old", "blue", "expensive", "loud"]),
             "year": rng.randint(1800, 2025), "city": rng.choice(list(data.CAPITALS.values())), "made": word.capitalize(),
             "low": word, "name": made_up_name(rng, memory.NAMES)}
    question = " ".join(vary(rng, rng.choice(_OUTSIDE)).format(**slots).split()).replace(" .", ".")
    question = re.sub(r"\ba (?=[aeiou])", "an ", question)
    return said("unknown", question, "That is not among the facts I know.", UNKNOWN)
