"""Writes one story: a hero, a place, a plot with its beats, an ending with a moral. It knows nothing of chat."""

from dataclasses import dataclass, field
from pathlib import Path

from . import story_words as words
from .chance import capitalised, chance, held_out, vary, with_article

_PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
}

_OPENINGS = [
    "Once upon a time, {in}, there lived {ah} named {N}.",
    "Once upon a time there was {ah} named {N}, who lived {in}.",
    "Long ago, {in}, there lived {ah}. {His} name was {N}.",
    "{In} lived {ah} called {N}.",
    "There once was {ah} whose name was {N}. {He} lived {in}.",
    "Far away, {in}, lived {ah} named {N}.",
    "{N} was {ah} who lived {in}.",
    "Once there was {ah} called {N}. {His} home was {in}.",
    "Not so long ago, {ah} named {N} lived {in}.",
]

_DETAILS = [
    "{N} loved {hobby}.",
    "Every day {he} liked {hobby}, and in the evening {he} liked {hobby2}.",
    "More than anything else, {he} loved {hobby}.",
    "Everybody {in} knew {him}.",
    "{His} home was small but cosy.",
    "When {he} was not asleep, {he} loved {hobby}.",
    "{He} had a warm heart and a head full of ideas.",
    "{N} had never been far from home.",
]

_ENDINGS = [
    "And {N} learned that {moral}.",
    "From that day on, {N} knew that {moral}.",
    "So {N} understood that {moral}.",
    "{N} never forgot that day. {Moral}.",
    "That evening {N} thought, \"{Moral}.\" And {he} fell asleep with a smile.",
    "And whenever somebody asked, {N} said, \"{Moral}.\"",
    "And they lived happily ever after, because {moral}.",
]


_NEEDS_PRESENT = ("the handmade gift", "the broken thing", "missing treasure")


@dataclass
class Wish:
    """What the reader asked for; None leaves it to the writer."""

    hero: str | None = None
    trait: str | None = None
    item: str | None = None  # adjective and noun, "golden key"
    name: str | None = None
    place: str | None = None
    friend: str | None = None
    theme: str | None = None
    plot: str | None = None
    pronoun: str | None = None


@dataclass
class Story:
    """A finished story and the facts in it that can be asked about."""

    text: str
    title: str
    hero: str
    name: str
    friend: str
    friend_name: str
    place: str
    theme: str
    moral: str
    key: tuple = field(default=())


@dataclass
class Plot:
    """One plot: beats, each a list of variants."""

    name: str
    theme: str
    items: str  # which objects fit, a key of `story_words.ITEMS`, or "none"
    kinds: list[str]
    outdoors: bool  # its scenes need open ground, not a house
    asked: list[str]  # how a request can name it, "who found a star"
    tied: list[int]  # beats (from 0) whose variants belong together
    beats: list[list[str]]


def _read_plots():
    plots = []
    for path in sorted((Path(__file__).parent / "plots").glob("*.txt")):
        text = "\n".join(line for line in path.read_text().split("\n") if not line.startswith("#"))
        for block in text.split("plot: ")[1:]:
            head, *beats = [part.strip().split("\n") for part in block.strip().split("\n\n")]
            fields = dict(line.split(": ", 1) for line in head[1:])
            kinds = ["land", "sea", "home"] if fields["on"] == "any" else fields["on"].split()
            tied = [int(number) - 1 for number in fields.get("tied", "").split()]
            plots.append(Plot(head[0], fields["theme"], fields["items"], kinds, "outdoors" in fields, fields["asked"].split(";"), tied, beats))
    return plots


PLOTS = _read_plots()
BY_NAME = {plot.name: plot for plot in PLOTS}
THEMES = sorted({plot.theme for plot in PLOTS})


def kind_of(noun, rng):
    """The kind of world a hero lives in: land, sea or home."""
    if noun in words.SEA_ANIMALS:
        return "sea"
    if noun in words.THINGS:
        return "home"
    if noun in words.PERSONS:
        return rng.choice(("home", "home", "land"))
    return "land"


def any_hero(rng):
    """A noun for a hero."""
    pools = (words.LAND_ANIMALS,) * 5 + (words.SEA_ANIMALS, words.THINGS, words.THINGS, tuple(words.PERSONS))
    return rng.choice(rng.choice(pools))


def any_item(rng, kind="any"):
    """An object with an adjective, now and then without; `kind` is what it must be good for."""
    noun = rng.choice(words.ITEMS[kind])
    return noun if chance(rng, 0.15) else f"{rng.choice(words.OBJECT_TRAITS)} {noun}"


def inside(place):
    """`in the forest`, `on the farm`."""
    return f"{words.PREPOSITIONS.get(place, 'in')} {place}"


def place_kind(place):
    """The kind of world a known place belongs to."""
    return next((kind for kind, places in words.PLACES.items() if place in places), "land")


def write(rng, wish=None, want_held_out=False):
    """Writes a story that fulfils the wish, on the wanted side of the held-out split."""
    wish = wish or Wish()
    for _ in range(10_000):
        cast = _cast(rng, wish)
        key = ("story", cast["plot"].name, cast["h"], cast["N"])
        if held_out(*key, percent=4) == want_held_out:
            return _tell(rng, cast, key)
    raise RuntimeError(f"no story for {wish} with held_out={want_held_out}")


def _cast(rng, wish):
    """Chooses the plot and fills every slot that stays the same through the story."""
    hero = wish.hero or any_hero(rng)
    kind = place_kind(wish.place) if wish.place else kind_of(hero, rng)
    plots = [BY_NAME[wish.plot]] if wish.plot else [plot for plot in PLOTS if kind in plot.kinds
                                                    and (wish.theme is None or plot.theme == wish.theme)
                                                    and (wish.item is None or fits(plot, wish.item))]
    plots = plots or [plot for plot in PLOTS if wish.theme is None or plot.theme == wish.theme]
    plot = rng.choice(plots)
    name, pronoun = _name(rng, hero, wish)
    friend_pool = {"land": words.LAND_ANIMALS, "sea": words.SEA_ANIMALS,
                   "home": words.LAND_ANIMALS + list(words.PERSONS)}[kind]
    friend = wish.friend or rng.choice([noun for noun in friend_pool if noun != hero])
    friend_name, friend_pronoun = _name(rng, friend, Wish(), taken=name)
    spots = rng.sample(words.SPOTS["land" if plot.outdoors and kind == "home" else kind], 3)
    item = wish.item or any_item(rng)
    while not wish.item and plot.items != "none" and (not fits(plot, item) or item.split(" ")[-1] in (hero, friend)):
        item = any_item(rng, plot.items)
    place = wish.place or rng.choice(words.PLACES[kind])
    trait = wish.trait or (rng.choice(words.TRAITS) if chance(rng, 0.5) else None)
    hobbies = rng.sample(words.HOBBIES[kind], 2)
    moral = rng.choice(words.MORALS[plot.theme])
    slots = {
        "plot": plot, "kind": kind, "N": name, "h": hero, "F": friend_name, "f": friend, "af": with_article(friend),
        "ah": with_article(f"{trait} {hero}" if trait else hero), "o": item, "ao": with_article(item),
        "n": item if item == "music box" else item.split(" ", 1)[-1],
        "an": with_article(item if item == "music box" else item.split(" ", 1)[-1]),
        "place": place, "in": inside(place), "In": capitalised(inside(place)), "spot1": spots[0], "spot2": spots[1],
        "spot3": spots[2], "food": rng.choice(words.FOOD[kind]), "e": rng.choice(words.ELDERS[kind]),
        "hobby": hobbies[0], "hobby2": hobbies[1], "butterfly": rng.choice(words.CHASED[kind]),
        "moral": moral, "Moral": capitalised(moral),
    }
    for prefix, forms in (("", _PRONOUNS[pronoun]), ("f", _PRONOUNS[friend_pronoun])):
        for slot, form in forms.items():
            slots[prefix + slot] = form
            slots[prefix.upper() + slot.capitalize()] = form.capitalize()
    return slots


def fits(plot, item):
    """Whether an object suits a plot: a lost key cannot be made as a gift, and a scarf does not break."""
    adjective, noun = item.split(" ")[0], item if item == "music box" else item.split(" ")[-1]
    if adjective in ("lost", "missing", "forgotten") and plot.name in _NEEDS_PRESENT:
        return False
    if adjective == "broken" and plot.items != "any":
        return False
    return plot.items == "any" or noun in words.ITEMS.get(plot.items, ())


def _name(rng, noun, wish, taken=None):
    """A name and a pronoun that fit each other, the noun and the wish."""
    wished = wish.name
    fixed = {**words.PERSONS, "mermaid": "she"}.get(noun, "?")
    if wished:
        known = "she" if wished in words.SHE_NAMES else "he" if wished in words.HE_NAMES else None
        likely = "she" if wished.endswith("a") else rng.choice(("she", "he"))
        return wished, known or (fixed if fixed != "?" else likely)
    pronoun = wish.pronoun or (fixed if fixed != "?" else rng.choice(("she", "he")))
    names = words.SHE_NAMES if pronoun == "she" else words.HE_NAMES
    return rng.choice([name for name in names if name != taken]), pronoun


def _tell(rng, cast, key):
    """Expands the beats into paragraphs."""
    def sentence(template):
        cast["went"] = rng.choice(words.WENT[cast["kind"]])
        return vary(rng, template).format_map(cast)

    plot = cast["plot"]
    opening = sentence(rng.choice(_OPENINGS))
    details = rng.sample(_DETAILS, rng.choice((0, 1, 1, 1, 2)))
    if sum("{hobby}" in detail for detail in details) > 1 or any("home" in detail for detail in details) and "home" in opening:
        details = [detail for detail in details[:1] if "home" not in detail]
    for detail in details:
        opening += " " + sentence(detail)
    shared = rng.randrange(min(len(beat) for beat in plot.beats))
    told = [sentence(beat[shared] if number in plot.tied else rng.choice(beat)) for number, beat in enumerate(plot.beats)]
    ending = sentence(rng.choice(_ENDINGS))
    middle = len(told) // 2
    last = [" ".join(told[middle + 1:] + [ending])]
    paragraphs = [opening, " ".join(told[:middle - 1]), " ".join(told[middle - 1:middle + 1])] + last
    title = rng.choice(("{N} the {h}", "{N} and {F}", "The {h} and the {f}") + (("The {o}", "The {h} and the {o}") if plot.items != "none" else ()))
    title = " ".join(word if word in ("and", "the", "of") else capitalised(word)
                     for word in capitalised(title.format_map(cast)).split(" "))
    return Story("\n\n".join(part for part in paragraphs if part), title, cast["h"], cast["N"], cast["f"], cast["F"],
                 cast["place"], plot.theme, cast["moral"], key)
