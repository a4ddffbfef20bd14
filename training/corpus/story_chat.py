"""Requests for a story and questions about the story just told. The stories themselves come from `stories`."""

from . import stories, story_words as words
from .chance import capitalised, chance, made_up_name, made_up_word, with_article
from .exchange import said

_START = ["Tell me a {k}story", "Write a {k}story", "Please tell me a {k}story", "Can you tell me a {k}story", "tell me a {k}story",
          "Write me a {k}story", "I would like to hear a {k}story", "Give me a {k}story", "Make up a {k}story",
          "Could you write a {k}story", "I want a {k}story", "Please write a {k}story", "A {k}story", "Tell a {k}story"]
_KINDS = ["", "", "", "", "short ", "short ", "little ", "nice ", "new ", "bedtime ", "children's ", "funny "]


def make(rng):
    """One request and its story; also returns the story, so that questions can follow."""
    wish, about = _wish(rng)
    kind = rng.choice(_KINDS)
    start = rng.choice(_START).format(k=kind)
    request = start + (" " + about if about else "")
    request += "?" if request.startswith(("Can", "Could")) else rng.choice([".", ".", "", "", "!", ", please."])
    story = stories.write(rng, wish)
    thought = f"A story about {with_article(story.hero)} named {story.name}. It is about {story.theme}."
    return said("story", request, thought, story.text), story


def _wish(rng):
    """What is asked for, and how the request says it."""
    roll = rng.random()
    if roll < 0.07:
        return stories.Wish(), ""
    if roll < 0.14:
        theme = rng.choice(stories.THEMES)
        return stories.Wish(theme=theme), f"about {theme}"
    if roll < 0.22:
        item = _asked_item(rng)
        return stories.Wish(item=item), f"about {with_article(item)}"
    hero = made_up_word(rng) if chance(rng, 0.07) else stories.any_hero(rng)
    wish = stories.Wish(hero=hero)
    if chance(rng, 0.4):
        wish.trait = rng.choice(words.TRAITS)
    about = f"about {with_article(f'{wish.trait} {hero}' if wish.trait else hero)}"
    more = rng.random()
    if more < 0.15:
        pool = words.SEA_ANIMALS if hero in words.SEA_ANIMALS else words.LAND_ANIMALS + list(words.PERSONS)
        wish.friend = rng.choice([noun for noun in pool if noun != hero])
        about += f" and {with_article(wish.friend)}"
    elif more < 0.35:
        wish.item = _asked_item(rng)
        about += f" and {with_article(wish.item)}"
    elif more < 0.5:
        pronoun = words.PERSONS.get(hero, "?")
        names = words.SHE_NAMES if pronoun == "she" else words.HE_NAMES if pronoun == "he" else words.SHE_NAMES + words.HE_NAMES
        wish.name = made_up_name(rng, names) if chance(rng, 0.3) else rng.choice(names)
        if chance(rng, 0.25):
            about = f"about my {about.split(' ', 2)[2]} {wish.name}"
        else:
            about += f" {rng.choice(['named', 'called'])} {wish.name}"
    elif more < 0.6:
        wish.place = rng.choice(words.PLACES[stories.kind_of(hero, rng)])
        about += rng.choice([" ", " ", " ", " that is set ", " who lives ", " that takes place "]) + stories.inside(wish.place)
    elif more < 0.80:
        about = _with_plot(rng, wish, about)
    elif more < 0.85:
        wish.theme = rng.choice(stories.THEMES)
        about += f" and {wish.theme}"
    return wish, about


def _asked_item(rng):
    """An object to ask for, now and then one that no list has."""
    return f"{rng.choice(words.OBJECT_TRAITS)} {made_up_word(rng)}" if chance(rng, 0.06) else stories.any_item(rng)


def _with_plot(rng, wish, about):
    """Names the plot: `who found a golden key`."""
    kind = stories.kind_of(wish.hero, rng)
    plot = rng.choice([plot for plot in stories.PLOTS if kind in plot.kinds])
    wish.plot = plot.name
    asked = rng.choice(plot.asked)
    if "{" in asked:
        wish.item = rng.choice(words.ITEMS[plot.items]) if "{n}" in asked else stories.any_item(rng, plot.items)
        while not stories.fits(plot, wish.item):
            wish.item = stories.any_item(rng, plot.items)
        asked = asked.format(ao=with_article(wish.item), n=wish.item)
        if " lost a " in asked and chance(rng, 0.5):
            fixed = words.PERSONS.get(wish.hero, "?")
            wish.pronoun = rng.choice(("she", "he")) if fixed == "?" else fixed
            asked = asked.replace(" lost a ", " lost her " if wish.pronoun == "she" else " lost his ")
    return f"{about} {asked}"


def again(rng):
    """The user wants one more story."""
    story = stories.write(rng)
    request = rng.choice(["Tell me another story.", "Another one, please.", "One more story!", "Another one", "And another one?",
                          "Please tell me one more.", "another story please", "Now a different story."])
    thought = f"A new story, about {with_article(story.hero)} named {story.name}."
    return said("story", request, thought, story.text)


def follow_up(rng, story):
    """A question about the story just told."""
    asked, answer = rng.choice([
        (["What was the {h} called?", "What was the name of the {h}?", "Who was the story about?"], "The {h} was called {N}."),
        (["Where did {N} live?", "Where does the story take place?"], "{N} lived {in}."),
        (["Who was {F}?", "What kind of creature was {F}?"], "{F} was {af}."),
        (["Who was {N}?", "What kind of creature was {N}?"], "{N} was {ah}."),
        (["What is the moral of the story?", "What did {N} learn?", "What does the story teach?"], "{Moral}."),
    ])
    slots = {"h": story.hero, "N": story.name, "F": story.friend_name, "af": with_article(story.friend),
             "ah": with_article(story.hero), "in": stories.inside(story.place), "Moral": capitalised(story.moral)}
    return said("story question", rng.choice(asked).format(**slots), "I look at the story I told.", answer.format(**slots))
