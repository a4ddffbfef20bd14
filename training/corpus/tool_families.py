"""The handful of tools the model learns to call: schemas in several wordings, questions, results, answers.

A family draws the arguments in its own names; `tools.py` renames them to the names of the offered schema.
"""

from dataclasses import dataclass
from typing import Callable

from . import memory, story_words as words
from .chance import chance, made_up_name, made_up_word


@dataclass
class Family:
    """One kind of tool; `parameters` maps our name to (possible names, JSON type, descriptions)."""

    name: str
    names: list[str]
    descriptions: list[str]
    parameters: dict[str, tuple[list[str], str, list[str]]]
    arguments: Callable
    asks: list[str]
    result: Callable
    answer: Callable
    pairs: list[str] | None = None  # how to ask for two calls at once, with {x} and {y} for the first argument


def _city(rng):
    return made_up_name(rng, memory.CITIES) if chance(rng, 0.25) else rng.choice(memory.CITIES)


def _name(rng):
    return made_up_name(rng, memory.NAMES) if chance(rng, 0.25) else rng.choice(memory.NAMES)


def _weather(rng, arguments):
    sky = rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear"])
    return {rng.choice(["condition", "weather", "sky"]): sky,
            rng.choice(["temperature", "temp", "degrees"]): rng.randint(-15, 38)}


def _weather_answer(arguments, result):
    sky, degrees = result.values()
    return f"In {arguments['city']} it is {sky} with {degrees} degrees."


def _expression(rng):
    a, b = rng.randint(2, 9999), rng.randint(2, 999)
    return {"expression": f"{a} {rng.choice('+-*')} {b}"}


def _calculated(rng, arguments):
    left, sign, right = arguments["expression"].split(" ")
    left, right = int(left), int(right)
    return {"result": left + right if sign == "+" else left - right if sign == "-" else left * right}


def _time(rng):
    return rng.choice([f"{rng.randint(0, 23):02}:{rng.choice('012345')}{rng.choice('05')}", f"{rng.randint(1, 12)} o'clock",
                       f"{rng.randint(1, 12)} {rng.choice(['am', 'pm'])}"])


_TASKS = ["{v} the {n}", "call {p}", "write to {p}", "buy a {n}", "meet {p}", "feed the {a}", "pay for the {n}",
          "clean the {n}", "visit {p}", "water the plants", "take out the trash", "bring the {n} to {p}"]
_TOPICS = ["{a}s in {c}", "history of {c}", "how to {v} a {n}", "best {f} in {c}", "{p} {m}", "{f} recipes", "hotels in {c}",
           "cheap {n}s", "the {m} festival", "{n} repair", "facts about {a}s", "weather records of {c}"]
_MESSAGES = ["I am late", "see you at {t}", "I will bring the {n}", "thank you for the {n}", "the {a} is fine",
             "let us meet in {c}", "dinner is ready", "I am in {c}", "please buy {f}", "happy birthday"]


def _fill(rng, template):
    return template.format(
        v=rng.choice(["clean", "repair", "paint", "sell", "find", "wash", "build", "move"]), n=rng.choice(words.OBJECTS),
        p=_name(rng), a=rng.choice(words.LAND_ANIMALS), c=_city(rng), f=rng.choice(memory.FOODS), m=made_up_word(rng),
        t=_time(rng))


def _found(rng, arguments):
    word = made_up_word(rng).capitalize()
    text = rng.choice(["The {w} guide has a page on {q}.", "There is a new book by {w} about {q}.",
                       "{w} wrote a long article on {q}.", "The {w} museum has a show about {q}."])
    return {"results": [{"title": word, "text": text.format(w=word, q=arguments["query"])}]}


_PHRASES = {"good morning": ("Guten Morgen", "bonjour", "buenos dias"), "thank you": ("danke", "merci", "gracias"),
            "please": ("bitte", "s'il vous plait", "por favor"), "good night": ("gute Nacht", "bonne nuit", "buenas noches"),
            "cat": ("Katze", "chat", "gato"), "dog": ("Hund", "chien", "perro"), "house": ("Haus", "maison", "casa"),
            "water": ("Wasser", "eau", "agua"), "bread": ("Brot", "pain", "pan"), "friend": ("Freund", "ami", "amigo"),
            "book": ("Buch", "livre", "libro"), "tree": ("Baum", "arbre", "arbol"), "sun": ("Sonne", "soleil", "sol"),
            "moon": ("Mond", "lune", "luna"), "yes": ("ja", "oui", "si"), "goodbye": ("auf Wiedersehen", "au revoir", "adios")}
_LANGUAGES = ["German", "French", "Spanish"]
_CURRENCIES = "EUR USD GBP JPY CHF SEK NOK DKK PLN CZK CAD AUD INR CNY BRL MXN".split()
_GROCERIES = """apples bananas lemons oranges pears plums eggs tomatoes potatoes onions carrots cucumbers peppers mushrooms
rolls buns cookies muffins candles batteries pencils pens notebooks envelopes stamps nails screws cups plates spoons forks bottles
bags boxes towels socks balloons lamps keys tickets olives grapes nuts beans melons limes figs dates""".split()
_ROOMS = ["kitchen", "bedroom", "living room", "bathroom", "garage", "hall", "office", "garden", "cellar", "attic"]


def _song(rng):
    return " ".join(made_up_word(rng).capitalize() if chance(rng, 0.3) else rng.choice(
        ["Blue", "River", "Night", "Golden", "Heart", "Dance", "Summer", "Rain", "Silver", "Moon", "Road", "Fire", "Home"])
        for _ in range(rng.randint(1, 3)))


def _ok(rng, arguments):
    return {rng.choice(["status", "result"]): rng.choice(["ok", "done", "success"])}


FAMILIES = [
    Family("weather", ["get_weather", "weather", "current_weather", "get_current_weather"],
           ["Get the current weather in a city.", "Returns the weather for a place.", "Current weather of a city"],
           {"city": (["city", "location", "place"], "string", ["The name of the city", "City name", "Where"])},
           lambda rng: {"city": _city(rng)},
           ["What is the weather in {city}?", "How is the weather in {city} today?", "What's the weather like in {city}?",
            "Tell me the weather in {city}.", "Weather in {city}?", "Is it raining in {city}?", "How warm is it in {city}?",
            "Do I need an umbrella in {city}?"],
           _weather, _weather_answer, ["What is the weather in {x} and in {y}?", "Tell me the weather in {x} and {y}."]),
    Family("calculator", ["calculator", "calculate", "evaluate", "compute"],
           ["Evaluate a mathematical expression.", "Calculates the value of an expression.", "A calculator"],
           {"expression": (["expression", "formula", "input"], "string", ["The expression to evaluate", "What to calculate"])},
           _expression,
           ["What is {expression}?", "Calculate {expression}.", "How much is {expression}?", "Compute {expression}.",
            "{expression} = ?", "Please calculate {expression}."],
           _calculated, lambda arguments, result: f"{arguments['expression']} = {result['result']}"),
    Family("time", ["get_time", "current_time", "get_current_time", "clock"],
           ["Get the current time in a city.", "Returns the local time of a place.", "What time it is somewhere"],
           {"city": (["city", "location", "place"], "string", ["The name of the city", "City name", "Where"])},
           lambda rng: {"city": _city(rng)},
           ["What time is it in {city}?", "Tell me the time in {city}.", "What is the local time in {city}?",
            "How late is it in {city}?", "Time in {city}?"],
           lambda rng, arguments: {"time": f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"},
           lambda arguments, result: f"It is {result['time']} in {arguments['city']}.",
           ["What time is it in {x} and in {y}?", "Tell me the time in {x} and {y}."]),
    Family("search", ["web_search", "search", "search_web", "find_online"],
           ["Search the web.", "Searches the internet for a query.", "Find pages on the web"],
           {"query": (["query", "q", "keywords"], "string", ["The search query", "What to search for"])},
           lambda rng: {"query": _fill(rng, rng.choice(_TOPICS))},
           ["Search the web for {query}.", "Look up {query}.", "Search for {query}.", "Find something about {query}.",
            "Please search {query}.", "What does the web say about {query}?"],
           _found, lambda arguments, result: "I found this: " + result["results"][0]["text"]),
    Family("reminder", ["set_reminder", "create_reminder", "add_reminder", "remind"],
           ["Set a reminder.", "Creates a reminder for a time.", "Remind the user of something"],
           {"text": (["text", "message", "task"], "string", ["What to remind of", "The text of the reminder"]),
            "time": (["time", "when", "at"], "string", ["The time of the reminder", "When to remind"])},
           lambda rng: {"text": _fill(rng, rng.choice(_TASKS)), "time": _time(rng)},
           ["Remind me to {text} at {time}.", "Set a reminder to {text} at {time}.", "At {time}, remind me to {text}.",
            "Please remind me at {time} to {text}."],
           _ok, lambda arguments, result: f"I will remind you to {arguments['text']} at {arguments['time']}."),
    Family("timer", ["set_timer", "start_timer", "timer"],
           ["Start a timer.", "Sets a timer for some minutes.", "A kitchen timer"],
           {"minutes": (["minutes", "duration", "duration_minutes"], "integer", ["Length in minutes", "Number of minutes"])},
           lambda rng: {"minutes": rng.randint(2, 120)},
           ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Timer for {minutes} minutes, please.",
            "Wake me in {minutes} minutes."],
           _ok, lambda arguments, result: f"The timer is set for {arguments['minutes']} minutes."),
    Family("message", ["send_message", "send_text", "text_contact", "write_message"],
           ["Send a message to a contact.", "Sends a text message.", "Write to somebody"],
           {"to": (["to", "recipient", "contact"], "string", ["Who gets the message", "Name of the contact"]),
            "text": (["text", "message", "body"], "string", ["The text of the message", "What to write"])},
           lambda rng: {"to": _name(rng), "text": _fill(rng, rng.choice(_MESSAGES))},
           ["Send a message to {to}: {text}", "Text {to}: {text}", "Write to {to}: {text}", "Tell {to}: {text}",
            "Send {to} the message \"{text}\"."],
           _ok, lambda arguments, result: f"I sent your message to {arguments['to']}."),
    Family("currency", ["convert_currency", "exchange", "currency_converter"],
           ["Convert an amount of money between currencies.", "Converts money.", "Currency exchange"],
           {"amount": (["amount", "value", "sum"], "number", ["The amount of money", "How much"]),
            "from": (["from", "source", "from_currency"], "string", ["The currency to convert from", "Source currency code"]),
            "to": (["to", "target", "to_currency"], "string", ["The currency to convert to", "Target currency code"])},
           lambda rng: dict(zip(("from", "to"), rng.sample(_CURRENCIES, 2)), amount=rng.randint(1, 5000)),
           ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "What is {amount} {from} in {to}?",
            "Change {amount} {from} into {to}."],
           lambda rng, arguments: {rng.choice(["amount", "result"]): round(arguments["amount"] * rng.uniform(0.2, 9), 2)},
           lambda arguments, result: f"{arguments['amount']} {arguments['from']} is {next(iter(result.values()))} "
                                     f"{arguments['to']}."),
    Family("translate", ["translate", "translate_text", "translator"],
           ["Translate a text.", "Translates text into another language.", "A translator"],
           {"text": (["text", "phrase", "input"], "string", ["The text to translate", "What to translate"]),
            "language": (["language", "target_language", "to"], "string", ["The language to translate into", "Target language"])},
           lambda rng: {"text": rng.choice(list(_PHRASES)), "language": rng.choice(_LANGUAGES)},
           ["Translate \"{text}\" into {language}.", "How do you say \"{text}\" in {language}?",
            "What is \"{text}\" in {language}?", "Please translate \"{text}\" to {language}."],
           lambda rng, arguments: {"translation": _PHRASES[arguments["text"]][_LANGUAGES.index(arguments["language"])]},
           lambda arguments, result: f"\"{arguments['text']}\" in {arguments['language']} is \"{result['translation']}\"."),
    Family("music", ["play_music", "play_song", "start_music"],
           ["Play a song.", "Plays music by title and artist.", "Start playing music"],
           {"title": (["title", "song", "track"], "string", ["The title of the song", "Song title"]),
            "artist": (["artist", "by", "singer"], "string", ["The artist", "Who sings it"])},
           lambda rng: {"title": _song(rng), "artist": _name(rng)},
           ["Play {title} by {artist}.", "I want to hear {title} by {artist}.", "Please play {title} by {artist}.",
            "Put on {title} by {artist}."],
           _ok, lambda arguments, result: f"Now playing {arguments['title']} by {arguments['artist']}."),
    Family("light", ["set_light", "switch_light", "control_light"],
           ["Switch a light on or off.", "Controls the lights of the house.", "Turn a lamp on or off"],
           {"room": (["room", "area", "where"], "string", ["The room", "In which room"]),
            "state": (["state", "mode", "value"], "string", ["on or off", "Either on or off"])},
           lambda rng: {"room": rng.choice(_ROOMS), "state": rng.choice(["on", "off"])},
           ["Turn {state} the light in the {room}.", "Switch {state} the {room} light.", "Please turn the {room} light {state}.",
            "Light {state} in the {room}, please."],
           _ok, lambda arguments, result: f"The light in the {arguments['room']} is now {arguments['state']}."),
    Family("shopping", ["add_to_list", "add_item", "shopping_list_add"],
           ["Add something to the shopping list.", "Puts an item on the list.", "Shopping list"],
           {"item": (["item", "product", "name"], "string", ["What to buy", "The item"]),
            "quantity": (["quantity", "count", "number"], "integer", ["How many", "Number of pieces"])},
           lambda rng: {"item": (made_up_word(rng) + "s") if chance(rng, 0.2) else rng.choice(_GROCERIES), "quantity": rng.randint(2, 30)},
           ["Add {quantity} {item} to my shopping list.", "Put {quantity} {item} on the list.",
            "I need {quantity} {item}, add them to the list.", "Please add {quantity} {item} to the list."],
           _ok, lambda arguments, result: f"I added {arguments['quantity']} {arguments['item']} to your list."),
]
BY_NAME = {family.name: family for family in FAMILIES}
