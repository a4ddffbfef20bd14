"""Things users tell about themselves and ask for later in the same conversation. It knows no other skill.

Held out: (attribute, value, turns in between).
"""

from . import story_words as words
from .chance import chance, made_up_name
from .exchange import said

_MORE_NAMES = """Anna Ben Carla David Elena Farid Grace Hiroshi Ingrid Jamal Kenji Laura Maria Noah Omar Priya Rahul Sofia Tariq
Ursula Valentina William Ximena Yusuf Zara Alice Bob Carol Daniel Eva Fatima George Hannah Isaac Julia Kevin Linda
Mark Nadia Paul Rachel Simon Thomas Veronica Peter James John Robert Michael Sarah Emily Lucas Mateo Chloe Ava Liam Ethan
Amelia Sophie Leon Mila Jan Piotr Olga Svetlana Chen Wei Mei Aiko Ravi Ananya Diego Lucia Marco Giulia Pierre Camille""".split()
NAMES = sorted(set(_MORE_NAMES + words.SHE_NAMES + words.HE_NAMES))
CITIES = """Paris Berlin Rome Madrid Lisbon Vienna Bern Warsaw Oslo Helsinki Dublin Athens Prague Budapest Tokyo Kyoto Osaka
Beijing Shanghai Delhi Mumbai Bangkok Hanoi Seoul Jakarta Sydney Melbourne Auckland Toronto Vancouver Montreal Boston Chicago
Denver Seattle Austin Miami Houston Dallas Atlanta Phoenix Portland London Leeds Bristol Glasgow Cardiff Hamburg Munich
Cologne Dresden Leipzig Zurich Geneva Milan Turin Naples Venice Florence Lyon Nice Marseille Barcelona Seville Porto
Amsterdam Rotterdam Brussels Antwerp Stockholm Gothenburg Bergen Reykjavik Tallinn Riga Vilnius Krakow Istanbul Ankara Cairo
Nairobi Lagos Accra Casablanca Lima Bogota Santiago Quito Havana Manila Singapore Dubai Doha Tehran Baghdad""".split() + [
    "New York", "San Francisco", "Los Angeles", "Buenos Aires", "Mexico City", "Hong Kong", "Cape Town", "New Delhi"]
COLOURS = """red blue green yellow orange purple pink brown black white grey turquoise violet silver gold beige crimson
indigo teal maroon lavender navy olive""".split()
FOODS = """pizza pasta rice soup bread cheese sushi salad curry pancakes chocolate apples strawberries potatoes noodles
dumplings tacos lasagna waffles cake cookies grapes mangoes tomatoes spinach""".split() + ["ice cream", "apple pie"]
HOBBIES = """painting swimming reading cooking dancing running hiking chess football tennis gardening singing fishing
knitting cycling climbing photography baking skating sailing""".split()
JOBS = """teacher doctor baker farmer pilot nurse painter carpenter cook singer writer lawyer gardener mechanic dentist
plumber programmer musician librarian firefighter""".split()
PETS = "dog cat rabbit hamster parrot turtle fish horse snake goat pony ferret mouse".split()

_LISTS = {"name": NAMES, "colour": COLOURS, "city": CITIES, "food": FOODS, "hobby": HOBBIES, "job": JOBS,
          "animal": words.LAND_ANIMALS[:40], "pet": NAMES, "age": [str(age) for age in range(5, 99)]}

# attribute: (ways to tell it, acknowledgements, ways to ask, answer, answer when it was never told)
_ATTRIBUTES = {
    "name": (["My name is {v}.", "I am {v}.", "I'm {v}.", "Hi, my name is {v}.", "Hello, I am {v}.", "You can call me {v}.",
              "Call me {v}.", "my name is {v}", "Hey! I'm {v}, nice to meet you.", "Please remember that my name is {v}.", "Hi, I am {v}", "hello i am {v}", "I'm {v}", "My name is {v}!",
              "The name is {v}.", "Hello, {v} is my name."],
             ["Nice to meet you, {v}!", "Hello, {v}! Nice to meet you.", "Hi {v}! How can I help you?"],
             ["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Tell me my name.",
              "what is my name", "Do you know my name?", "Can you tell me my name?",
              "What's my name again?", "What was my name?"],
             "Your name is {v}.", "You have not told me your name yet."),
    "colour": (["My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v} best.",
                "The colour I like most is {v}."],
               ["{V} is a nice colour.", "I will remember that you like {v}."],
               ["What is my favourite colour?", "What's my favorite color?", "Which colour do I like best?",
                "Do you remember my favourite colour?"],
               "Your favourite colour is {v}.", "You have not told me your favourite colour yet."),
    "city": (["I live in {v}.", "My home is in {v}.", "I'm from {v}.", "I come from {v}."],
             ["{V} sounds like a nice place.", "Thank you, I will remember that you live in {v}."],
             ["Where do I live?", "Which city do I live in?", "Where is my home?", "Do you remember where I live?"],
             "You live in {v}.", "You have not told me where you live yet."),
    "food": (["My favourite food is {v}.", "I like {v} more than any other food.", "The food I like best is {v}."],
             ["{V}, good choice!", "I will remember that you like {v}."],
             ["What is my favourite food?", "Which food do I like best?", "Do you remember my favourite food?"],
             "Your favourite food is {v}.", "You have not told me your favourite food yet."),
    "hobby": (["My hobby is {v}.", "In my free time I like {v}.", "My favourite hobby is {v}."],
              ["{V} sounds like fun.", "I will remember that your hobby is {v}."],
              ["What is my hobby?", "What's my hobby?", "Do you remember my hobby?", "What do I like in my free time?"],
              "Your hobby is {v}.", "You have not told me your hobby yet."),
    "job": (["I work as a {v}.", "My job is {v}.", "I am a {v} by profession."],
            ["That is an important job.", "I will remember that you work as a {v}."],
            ["What is my job?", "What do I work as?", "Do you remember my job?", "What's my job?"],
            "You work as a {v}.", "You have not told me your job yet."),
    "animal": (["My favourite animal is the {v}.", "The animal I like best is the {v}."],
               ["The {v} is a wonderful animal.", "I will remember that you like the {v}."],
               ["What is my favourite animal?", "Which animal do I like best?", "Do you remember my favourite animal?"],
               "Your favourite animal is the {v}.", "You have not told me your favourite animal yet."),
    "pet": (["I have a {p} named {v}.", "My {p} is called {v}.", "My {p}'s name is {v}.", "I have a {p}. Its name is {v}."],
            ["{V} is a lovely name for a {p}.", "Say hello to {v} from me."],
            ["What is the name of my {p}?", "What is my {p} called?", "What's my {p}'s name?",
             "Do you remember the name of my {p}?"],
            "Your {p} is called {v}.", "You have not told me about a {p} yet."),
    "age": (["I am {v} years old.", "I'm {v}.", "My age is {v}.", "I turned {v} this year."],
            ["{v} is a good age.", "I will remember that you are {v} years old."],
            ["How old am I?", "What is my age?", "Do you remember how old I am?", "What's my age?"],
            "You are {v} years old.", "You have not told me your age yet."),
}
ATTRIBUTES = list(_ATTRIBUTES)


def any_attribute(rng):
    """An attribute; the name is by far the most common one."""
    return "name" if chance(rng, 0.4) else rng.choice(ATTRIBUTES)


def any_value(rng, attribute):
    """A value from its list or, for names and cities, now and then an invented one; pets are (kind, name)."""
    if attribute in ("name", "pet", "city") and chance(rng, 0.45):
        value = made_up_name(rng, _LISTS[attribute])
    else:
        value = rng.choice(_LISTS[attribute])
    return (rng.choice(PETS), value) if attribute == "pet" else value


def tell(rng, attribute, value):
    """The user tells it; the model acknowledges."""
    statements, replies, *_ = _ATTRIBUTES[attribute]
    slots = _slots(attribute, value)
    if attribute == "age" and chance(rng, 0.5):
        statements = statements[:1]
    return said("memory", rng.choice(statements).format(**slots), "The user tells me something to remember.",
                rng.choice(replies).format(**slots), key=("told", attribute, value))


def ask(rng, attribute, value):
    """The user asks for what was told before."""
    _, _, questions, answer, _ = _ATTRIBUTES[attribute]
    slots = _slots(attribute, value)
    answer = answer.format(**slots)
    return said("memory", rng.choice(questions).format(**slots), f"The user told me this earlier. {answer}", answer,
                key=("memory", attribute, value))


def ask_untold(rng, attribute):
    """The user asks for something never told."""
    _, _, questions, _, unknown = _ATTRIBUTES[attribute]
    slots = _slots(attribute, any_value(rng, attribute))
    return said("memory", rng.choice(questions).format(**slots), "The user has not told me this.", unknown.format(**slots))


def gap(exchanges, question):
    """How many exchanges lie between the telling and this question, which is to follow `exchanges`."""
    told = ("told", *question.key[1:])
    return next(distance for distance, exchange in enumerate(reversed(exchanges)) if exchange.key == told)


def _slots(attribute, value):
    pet, value = value if attribute == "pet" else ("", value)
    return {"v": value, "V": value[:1].upper() + value[1:], "p": pet}
