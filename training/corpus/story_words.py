"""The vocabulary of the stories: who can appear, where, with what. It knows nothing of plots or chat."""

LAND_ANIMALS = """fox rabbit bear mouse wolf deer squirrel hedgehog badger owl cat dog lion tiger elephant giraffe
monkey zebra kangaroo koala panda turtle frog toad snake lizard duck goose hen rooster goat sheep lamb cow horse pony
donkey pig piglet hamster mole otter beaver raccoon skunk bat crow raven sparrow robin eagle parrot peacock swan
stork bee ant spider snail ladybug butterfly caterpillar cricket firefly beetle dragonfly worm hippo rhino camel
llama alpaca penguin ostrich flamingo moose bison lynx leopard cheetah gorilla sloth chipmunk weasel kitten puppy
bunny foal calf chick duckling cub dragon unicorn dinosaur griffin phoenix ferret platypus wombat meerkat
armadillo anteater porcupine reindeer yak iguana chameleon gecko pigeon dove pelican woodpecker hummingbird jaguar panther
hyena baboon orangutan chimpanzee lemur antelope gazelle buffalo boar warthog rat gerbil guinea-pig alligator crocodile tortoise
salamander newt mosquito moth wasp grasshopper flea louse scorpion centipede canary finch magpie jay heron crane vulture falcon
hawk kiwi emu cockatoo toucan partridge pheasant quail turkey mule ox bull jackal coyote dingo marmot lemming vole shrew stoat
mammoth yeti werewolf goblin centaur""".split()

SEA_ANIMALS = """whale dolphin shark octopus crab fish goldfish seahorse starfish jellyfish seal walrus lobster
shrimp squid clownfish swordfish stingray eel clam mermaid salmon tuna pufferfish orca manatee
narwhal anglerfish herring cod trout carp oyster sea-lion sea-turtle""".split()

THINGS = """robot teapot lantern cloud train car truck boat kite clock pencil umbrella snowman scarecrow toy doll
teddy-bear balloon candle book broom shoe star moonbeam raindrop snowflake pebble tree flower sunflower pumpkin
cupcake cookie spoon lamp bicycle tractor airplane rocket lighthouse puppet drum violin piano key button leaf
snowplow bus ship suitcase chair pillow sock hat mirror bell windmill tugboat
spaceship submarine scooter tram van wagon carriage cart crayon paintbrush guitar trumpet flute computer phone
television radio camera fridge oven kettle mug plate fork knife bottle jar box bag table sofa bed carpet curtain window door
house castle tower bridge river mountain island volcano rainbow comet planet moon sun wind wave shadow echo mushroom acorn
cactus rose tulip daisy apple banana orange lemon carrot potato tomato onion pea bean cheese sandwich pancake pizza muffin
donut cake pie egg noodle ball marble puzzle statue coin stamp letter map flag tent ladder hammer nail wheel magnet battery
glove scarf coat boot mitten ring necklace crown zipper ribbon eraser ruler notebook dictionary""".split()

# Persons and the pronoun that fits; "?" means either.
PERSONS = {
    "girl": "she", "boy": "he", "princess": "she", "prince": "he", "king": "he", "queen": "she", "knight": "?",
    "wizard": "he", "witch": "she", "farmer": "?", "baker": "?", "fisherman": "he", "pirate": "?", "sailor": "?",
    "gardener": "?", "tailor": "?", "teacher": "?", "doctor": "?", "painter": "?", "musician": "?", "giant": "?",
    "elf": "?", "fairy": "she", "gnome": "?", "dwarf": "?", "troll": "?", "ghost": "?", "astronaut": "?",
    "inventor": "?", "scientist": "?", "grandmother": "she", "grandfather": "he", "child": "?", "shepherd": "?",
    "carpenter": "?", "cook": "?", "dancer": "?", "singer": "?", "clown": "?", "detective": "?", "explorer": "?",
    "traveller": "?", "student": "?", "monster": "?", "mechanic": "?", "firefighter": "?", "pilot": "?",
    "captain": "?", "blacksmith": "?", "clockmaker": "?", "man": "he", "woman": "she", "mother": "she", "father": "he",
    "sister": "she", "brother": "he", "nurse": "?", "postman": "he", "policeman": "he", "soldier": "?", "hunter": "?",
    "miller": "?", "shoemaker": "?", "librarian": "?", "programmer": "?", "writer": "?", "poet": "?", "vampire": "?",
    "superhero": "?", "ninja": "?", "cowboy": "he", "emperor": "he", "baby": "?", "twin": "?", "magician": "?", "alien": "?",
    "robot builder": "?", "beggar": "?", "thief": "?", "merchant": "?", "monk": "he", "driver": "?", "swimmer": "?",
}

SHE_NAMES = """Ruby Lily Mia Anna Ella Nora Luna Rosie Daisy Poppy Hazel Ivy Clara Emma Zoe Molly Holly Bella Tilly
Willow Maya Stella Flora Olive Penny Greta Ida Frida Lotta Marta Nell Pearl Queenie Sasha Tessa Una Vera Wanda Yara
Zelda Amber Bonnie Cleo Dora Elsie Fern Ginger Hattie Iris Juno Kiki Lulu Mabel Nina Opal Pia Rita Suki Thea Viola
Winnie Alma Bea Coco Dot Edith Faye Gemma Hilda Jade""".split()

HE_NAMES = """Max Leo Finn Oscar Felix Tom Ben Sam Theo Milo Otto Hugo Jasper Rufus Bruno Charlie Toby Oliver Henry
Jack Pip Basil Barnaby Chester Dexter Edgar Fergus Gus Harvey Igor Jonas Kasper Linus Monty Ned Olaf Percy Quentin
Rolf Stanley Tobias Ulf Victor Wilbur Xander York Zeke Arlo Bert Conrad Dante Emil Frank Gilbert Herbert Ivan Joey
Klaus Lars Moritz Nico Orson Pablo Rocco Sven Timmy Umberto Vito Walter Yuri Ziggy Rex""".split()

TRAITS = """brave little clever kind shy curious lonely old young hungry sleepy proud cheerful gentle clumsy tiny
big patient playful forgetful grumpy happy quiet friendly honest small sad lazy funny wise silly busy stubborn
careful dreamy polite fearless nervous lucky poor""".split()

LAND_PLACES = """the forest|the green valley|the meadow|the dark wood|the old orchard|the wide plain|the little wood|
the misty hills|the jungle|the quiet marsh|the big garden|the sunny savanna|the birch forest|the high mountains|
the farm|the riverbank|the pine forest|the island|the desert|the park"""
SEA_PLACES = """the coral reef|the deep blue sea|the quiet lagoon|the kelp forest|the wide ocean|the sunny bay|
the cold north sea|the sea caves|the harbour|the great lake"""
HOME_PLACES = """the little village|the old town|the castle|the small town by the sea|the big city|the mill|
the mountain village|the harbour town|the kingdom|the old house|the workshop|the market town|the village by the lake|
the valley of windmills|the land of clouds"""

PLACES = {kind: [place.strip() for place in text.replace("\n", "").split("|")]
          for kind, text in (("land", LAND_PLACES), ("sea", SEA_PLACES), ("home", HOME_PLACES))}

# The preposition where "in" would be wrong.
PREPOSITIONS = {"the farm": "on", "the riverbank": "on", "the island": "on", "the wide plain": "on",
                "the coral reef": "at", "the mill": "at", "the high mountains": "in", "the harbour": "in",
                "the sunny savanna": "on"}

SPOTS = {
    "land": """under the old oak|beside the river|behind a big rock|near the pond|at the edge of the field|
in the tall grass|on top of the hill|next to a hollow log|between the roots of a tree|by the waterfall|
near the stone wall|under a bush|at the end of the path|beside the spring""",
    "sea": """behind a big rock|in a dark cave|near the old shipwreck|between two corals|under a shell|
at the bottom of the sea|in the tall seaweed|next to a sunken chest|by the sandbank|beside a warm spring|
under the cliffs|where the water is clear""",
    "home": """behind the mill|near the well|under the bridge|at the market|in the attic|on the roof|
beside the garden gate|next to the bakery|in front of the church|at the end of the street|under the stairs|
by the fountain|in the barn|behind the old shed""",
}
SPOTS = {kind: [spot.strip() for spot in text.replace("\n", "").split("|")] for kind, text in SPOTS.items()}

FOOD = {
    "land": ["a loaf of bread", "a bowl of nuts", "a sweet red apple", "a slice of honey cake", "a basket of berries",
             "a handful of cherries", "a piece of cheese", "a bowl of warm soup", "a ripe pear", "a pot of honey"],
    "sea": ["a seaweed cake", "a bowl of sea grapes", "a plate of kelp noodles", "a sweet sea cucumber",
            "a handful of algae cookies", "a piece of coral candy"],
    "home": ["a loaf of bread", "a bowl of hot soup", "an apple pie", "a piece of cheese", "a plate of pancakes",
             "a bag of plums", "a slice of chocolate cake", "a jar of jam", "a warm bun", "a pot of porridge"],
}

WENT = {"land": ["walked", "ran", "hurried", "went", "wandered"], "sea": ["swam", "glided", "hurried", "went"],
        "home": ["walked", "ran", "hurried", "went"]}

CHASED = {"land": ["butterfly", "bumblebee", "falling leaf"], "sea": ["bright little fish", "string of bubbles"],
          "home": ["cat", "butterfly", "paper boat"]}

OBJECTS = """key ring hat bell map lantern kite drum book coin button shell music-box spoon scarf compass feather
mirror whistle locket clock ball boat umbrella basket cup crown violin flute necklace lamp box pearl marble medal
stone telescope teapot puppet painting bracelet trumpet blanket vase glove pen notebook wheel doll""".split()
OBJECTS = [name.replace("-", " ") for name in OBJECTS]
# What an object must be good for in a plot.
ITEMS = {
    "any": OBJECTS,
    "breakable": """cup bell mirror lantern clock lamp teapot flute violin puppet doll telescope vase whistle crown kite
        boat painting pearl plate bowl pot jar candle""".split() + ["music box"],
    "container": "book box locket basket boat drum clock lantern vase teapot bottle chest bag suitcase jar".split(),
    "sounding": "bell drum flute violin trumpet whistle spoon cup vase piano guitar harp horn".split(),
}
THINGS, LAND_ANIMALS, SEA_ANIMALS = ([name.replace("-", " ") for name in names] for names in (THINGS, LAND_ANIMALS, SEA_ANIMALS))

OBJECT_TRAITS = """golden silver old tiny red shiny wooden secret magic blue green beautiful strange little glass
lost missing forgotten precious copper yellow broken""".split()

ELDERS = {"land": ["owl", "tortoise", "raven", "bear", "goat"], "sea": ["turtle", "whale", "lobster", "walrus"],
          "home": ["woman", "man", "clockmaker", "sailor", "gardener"]}

HOBBIES = {
    "land": ["to explore", "to climb the hills", "to tell stories", "to watch the clouds", "to collect shiny stones",
             "to sing in the morning", "to sleep in the sun", "to count the stars", "to play hide and seek"],
    "sea": ["to chase bubbles", "to explore old shipwrecks", "to dance in the waves", "to collect shells",
            "to sing with the tide", "to play hide and seek"],
    "home": ["to read old books", "to look out of the window", "to sing", "to dream of far places", "to paint",
             "to collect buttons", "to tell jokes", "to watch the clouds", "to bake"],
}

MORALS = {
    "honesty": ["the truth is worth more than gold", "an honest heart sleeps well",
                "it is always better to tell the truth", "what is not yours should go back to its owner"],
    "sharing": ["sharing makes everything better", "those who share are never poor",
                "a small meal shared is a feast", "what you give away comes back to you"],
    "friendship": ["a good friend is worth more than any treasure", "a friend can come from anywhere",
                   "nobody should have to be alone", "the best gift is a friend"],
    "kindness": ["a little kindness goes a long way", "kindness always finds its way back",
                 "helping others makes your own heart light", "even a small kindness can change the world"],
    "forgiveness": ["saying sorry is braver than being right", "friends can forgive each other",
                    "no thing is worth losing a friend", "a quarrel ends when two hearts want it to"],
    "courage": ["being brave means doing it even though you are afraid", "fear is smaller when you look at it",
                "courage grows with every step", "with a friend by your side you can do anything"],
    "adventure": ["the best treasure is a friend", "every journey is better together",
                  "you never know what you will find when you set out", "the way is as good as the goal"],
    "cleverness": ["a good idea can be stronger than strong arms", "it helps to think before you act",
                   "even the smallest can have the biggest idea"],
    "asking for help": ["it is not weak to ask for help", "everyone needs help sometimes",
                        "those who ask will find the way"],
    "perseverance": ["those who keep going will reach the goal", "little steps lead far",
                     "you only lose when you stop trying", "practice is better than pride"],
    "patience": ["good things take time", "patience brings the sweetest fruit", "it helps to look twice",
                 "those who can wait will be rewarded"],
    "teamwork": ["together we can do what nobody can do alone", "many hands make light work",
                 "everyone can help in their own way"],
    "not being greedy": ["enough is as good as a feast", "those who want everything often lose it",
                         "sharing tastes sweeter than having it all"],
    "being prepared": ["a little work each day goes a long way", "it is good to think of tomorrow",
                       "those who prepare can also help others"],
    "joy": ["there is always time for a song", "joy grows when it is shared", "a little music makes work light"],
    "keeping promises": ["a promise is a promise", "friends can trust each other's word",
                         "keeping your word makes two people happy"],
    "fairness": ["it is better to be fair than to be first", "a fair heart always wins",
                 "winning means nothing without fairness"],
    "wonder": ["there is something new to discover every day", "the world is full of wonders",
               "beautiful things come again"],
    "helpfulness": ["everyone likes to hear a thank you", "a thank you can light up the night",
                    "even the smallest light can help"],
}
