"""JSON on request: objects, arrays and one level of nesting from values in the question. It knows no other skill.

Held out: the finished JSON value.
"""

import json

from . import memory, story_words as words
from .chance import chance, held_out, made_up_name, made_up_word
from .exchange import said

_TITLES = ["The Last Lamp", "Blue River", "Winter Light", "A Small House", "The Long Road", "Green Hills", "Night Train",
           "The Old Clock", "Seven Stones", "Summer Rain", "The Quiet Sea", "Paper Boats"]
_STREETS = ["Hill Road", "Main Street", "Oak Lane", "River Street", "Park Avenue", "Mill Road", "Station Street"]
_PRODUCTS = "pen lamp chair table cup book bag phone clock bottle shirt hat desk mirror bike".split()


def _word(rng):
    return made_up_word(rng) if chance(rng, 0.25) else rng.choice(words.OBJECTS[:20] + memory.COLOURS + _PRODUCTS)


def _name(rng):
    return made_up_name(rng, memory.NAMES) if chance(rng, 0.3) else rng.choice(memory.NAMES)


_FIELDS = {
    "name": _name, "first_name": _name, "owner": _name, "author": _name, "friend": _name, "user": _name,
    "city": lambda rng: rng.choice(memory.CITIES), "country": lambda rng: rng.choice(["France", "Japan", "Peru", "Kenya",
                                                                                      "Norway", "Chile", "Italy", "India"]),
    "colour": lambda rng: rng.choice(memory.COLOURS), "color": lambda rng: rng.choice(memory.COLOURS),
    "animal": lambda rng: rng.choice(words.LAND_ANIMALS), "food": lambda rng: rng.choice(memory.FOODS),
    "job": lambda rng: rng.choice(memory.JOBS), "hobby": lambda rng: rng.choice(memory.HOBBIES),
    "title": lambda rng: rng.choice(_TITLES), "street": lambda rng: rng.choice(_STREETS),
    "product": lambda rng: rng.choice(_PRODUCTS), "type": _word, "item": _word, "status": _word, "category": _word,
    "size": lambda rng: rng.choice(["small", "medium", "large", "tiny", "huge"]),
    "day": lambda rng: rng.choice("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "language": lambda rng: rng.choice("English German French Spanish Italian Polish".split()),
    "age": lambda rng: rng.randint(1, 99), "year": lambda rng: rng.randint(1900, 2030), "id": lambda rng: rng.randint(1, 9999),
    "count": lambda rng: rng.randint(0, 500), "quantity": lambda rng: rng.randint(1, 99),
    "score": lambda rng: rng.randint(0, 100), "number": lambda rng: rng.randint(0, 999), "height": lambda rng: rng.randint(10, 250),
    "price": lambda rng: rng.choice([rng.randint(1, 200), round(rng.uniform(1, 99), 2)]),
    "weight": lambda rng: rng.choice([rng.randint(1, 200), round(rng.uniform(1, 99), 1)]),
    "active": lambda rng: chance(rng, 0.5), "done": lambda rng: chance(rng, 0.5), "available": lambda rng: chance(rng, 0.5),
    "tags": lambda rng: [_word(rng) for _ in range(rng.randint(1, 3))],
    "numbers": lambda rng: [rng.randint(0, 99) for _ in range(rng.randint(1, 4))],
    "colours": lambda rng: rng.sample(memory.COLOURS, rng.randint(2, 3)),
}
_GROUPS = ["person", "user", "book", "product", "order", "animal", "address", "item", "car", "student"]
_START = ["Make a JSON object with", "Write a JSON object with", "Give me a JSON object with", "Create a JSON object with",
          "Return a JSON object with", "I need a JSON object with", "Please make a JSON object with", "JSON object with",
          "Generate a JSON object with", "Can you write a JSON object with"]


def make(rng, want_held_out=False):
    """One request and its JSON, on one line with `", "` and `": "`."""
    while True:
        roll = rng.random()
        question, value = _array(rng) if roll < 0.12 else _nested(rng) if roll < 0.24 else _object(rng)
        answer = json.dumps(value, ensure_ascii=False)
        key = ("json", json.dumps(value, sort_keys=True))
        if held_out(*key) == want_held_out:
            break
    kind = "an array" if isinstance(value, list) else "an object"
    count = len(value)
    thought = f"JSON, {kind} with {count} {'entry' if count == 1 else 'entries'}."
    return said("json", question, thought, answer, expect=value, check="json", key=key)


def _fields(rng, most=5):
    names = rng.sample(list(_FIELDS), rng.choice([1, 2, 2, 3, 3, 4, most]))
    return {made_up_word(rng) if chance(rng, 0.12) else name: _FIELDS[name](rng) for name in names}


def _object(rng):
    value = _fields(rng)
    form = rng.choice((0, 0, 1, 2, 3, 4, 5))
    if form == 5:
        listed = ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
        start = rng.choice(["Make a JSON object: ", "Create a JSON object: ", "Write this as JSON: ", "JSON please: ", "JSON: "])
        return start + rng.choice([listed, "{" + listed + "}", json.dumps(value)]), value
    if form == 0:
        write = _plain if chance(rng, 0.5) and not any(" " in str(item) for item in value.values()) else json.dumps
        listed = _join([f"{name} {write(item)}" for name, item in value.items()])
        return f"{rng.choice(_START)} {listed}.", value
    if form == 1:
        listed = ", ".join(f"{name} = {_plain(item)}" for name, item in value.items())
        return f"{rng.choice(_START)} the fields {listed}.", value
    if form == 2:
        listed = ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
        start = ("Turn this into JSON: ", "Write as JSON: ", "Convert to JSON: ", "As JSON: ", "Put this in JSON: ")
        return rng.choice(start) + listed, value
    if form == 3:
        listed = "\n".join(f"- {name}: {_plain(item)}" for name, item in value.items())
        return f"{rng.choice(_START)} these fields:\n{listed}", value
    listed = _join([f"{name} is {json.dumps(item)}" for name, item in value.items()])
    return f"{rng.choice(['Write JSON where', 'Make JSON in which', 'Give me JSON where'])} {listed}.", value


def _nested(rng):
    group, value = rng.choice(_GROUPS), _fields(rng, 3)
    listed = _join([f"{name} {json.dumps(item)}" for name, item in value.items()])
    start = rng.choice(["Make a JSON object {g} with {l}.", "Write a JSON object with {g} that has {l}.",
                        "Create JSON with an object {g} that has {l}."])
    return start.format(g=group, l=listed), {group: value}


def _array(rng):
    pools = [memory.COLOURS, memory.NAMES, words.LAND_ANIMALS, memory.FOODS, memory.CITIES, list(range(100))]
    value = rng.sample(rng.choice(pools), rng.randint(2, 5))
    start = rng.choice(["Make a JSON array of", "Write a JSON list with", "Give me a JSON array with", "JSON array of",
                        "Create a JSON list of", "Return a JSON array with"])
    return f"{start} {_join([str(item) for item in value])}.", value


def _plain(item):
    """Strings without quotes; everything else as in JSON."""
    return item if isinstance(item, str) else json.dumps(item)


def _join(parts):
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
