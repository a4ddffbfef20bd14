"""Small random helpers and the split between training and held-out combinations. It knows no skill."""

import re
import zlib

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ONSETS = "b d f g k l m n p r s t v z br dr fl gr kl pl st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "l", "r", "m", "x", "sk", "nd"]


def held_out(*combination, percent=8):
    """Whether this combination belongs to the held-out evaluation (never in the corpus).

    A hash of the combination decides, so the split depends neither on the seed nor on the order of generation.
    """
    return zlib.crc32("|".join(map(str, combination)).encode()) % 100 < percent


def draw(rng, make, key, want_held_out, percent=8):
    """Calls `make(rng)` until `key(result)` is on the wanted side of the split."""
    for _ in range(10_000):
        result = make(rng)
        if held_out(*key(result), percent=percent) == want_held_out:
            return result
    raise RuntimeError(f"no combination with held_out={want_held_out} after 10000 draws of {make.__name__}")


def vary(rng, template):
    """Replaces every `[a|b|c]` by one of its variants."""
    return _CHOICE.sub(lambda match: rng.choice(match.group(1).split("|")), template)


def chance(rng, probability):
    """True with this probability."""
    return rng.random() < probability


def made_up_word(rng, syllables=None):
    """A pronounceable word that is in no list: teaches the model to copy rather than to recognise."""
    count = syllables or rng.choice((2, 2, 3))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count))
    return word + rng.choice(_CODAS)


def casual(rng, text):
    """The text as people type it: now and then in lower case, without its last mark, or with a word around it."""
    roll = rng.random()
    if roll < 0.10:
        text = text.lower()
    elif roll < 0.13:
        text = rng.choice(["Hey, ", "Hi, ", "Please, ", "Fornax, ", "Okay, ", "And ", "So, "]) + text[:1].lower() + text[1:]
    elif roll < 0.16:
        text = text.rstrip(".?! ") + rng.choice([", please", " please", ", my friend", " now", ", Fornax"]) + text[-1:] * (text[-1:] in ".?!")
    if chance(rng, 0.12):
        text = text.rstrip(".?!")
    return text


def made_up_name(rng, names):
    """A name that is in no list, mostly blended from two that are: `Theo` and `Dora` give `Theora`."""
    if chance(rng, 0.3):
        return made_up_word(rng).capitalize()
    one, other = rng.choice(names), rng.choice(names)
    return one[:rng.randint(1, len(one))] + other[rng.randint(0, max(0, len(other) - 2)):].lower()


def with_article(phrase):
    """`fox` → `a fox`, `owl` → `an owl`."""
    vowel = phrase[0].lower() in "aeiou" and not phrase.startswith("uni") or phrase.startswith(("honest", "hour"))
    return ("an " if vowel else "a ") + phrase


def capitalised(text):
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]
