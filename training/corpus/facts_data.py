"""The closed list of facts the model knows: plain data, checked by hand. Own selection and wording."""

CAPITALS = dict(pair.split(":") for pair in """France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|
Austria:Vienna|Switzerland:Bern|Poland:Warsaw|Sweden:Stockholm|Norway:Oslo|Denmark:Copenhagen|Finland:Helsinki|
Iceland:Reykjavik|Ireland:Dublin|Greece:Athens|Hungary:Budapest|Romania:Bucharest|Bulgaria:Sofia|Croatia:Zagreb|
Belgium:Brussels|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius|Ukraine:Kyiv|Turkey:Ankara|Egypt:Cairo|Kenya:Nairobi|
Morocco:Rabat|Nigeria:Abuja|Ghana:Accra|Ethiopia:Addis Ababa|Japan:Tokyo|China:Beijing|India:New Delhi|Thailand:Bangkok|
Vietnam:Hanoi|South Korea:Seoul|Indonesia:Jakarta|Australia:Canberra|New Zealand:Wellington|Canada:Ottawa|
Mexico:Mexico City|Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota|Cuba:Havana|
Nepal:Kathmandu|Iran:Tehran|Iraq:Baghdad|Mongolia:Ulaanbaatar|England:London|Scotland:Edinburgh|
Czechia:Prague|Slovakia:Bratislava|Slovenia:Ljubljana|Serbia:Belgrade|Uruguay:Montevideo|
the Netherlands:Amsterdam|Russia:Moscow|the United Kingdom:London|the United States:Washington|the Philippines:Manila|
Saudi Arabia:Riyadh|Algeria:Algiers|Tunisia:Tunis|Senegal:Dakar|Uganda:Kampala|Pakistan:Islamabad|Bangladesh:Dhaka|
Malaysia:Kuala Lumpur|Ecuador:Quito|Venezuela:Caracas|Paraguay:Asuncion|Jamaica:Kingston|Lebanon:Beirut|Jordan:Amman|
Syria:Damascus|Qatar:Doha|Georgia:Tbilisi|Armenia:Yerevan|Albania:Tirana|Malta:Valletta|Cyprus:Nicosia|Belarus:Minsk|
Cambodia:Phnom Penh|Laos:Vientiane|Angola:Luanda|Zambia:Lusaka|Zimbabwe:Harare|Sudan:Khartoum|Libya:Tripoli|
Costa Rica:San Jose|Honduras:Tegucigalpa|Nicaragua:Managua""".replace("\n", "").split("|"))

SHARED_CAPITALS = ("the United Kingdom",)  # their city is the answer to another country, too

COLOURS = dict(pair.split(":") for pair in """a banana:yellow|a lemon:yellow|grass:green|the sky:blue|snow:white|the grass:green|
coal:black|a ripe tomato:red|a carrot:orange|a polar bear:white|a frog:green|chocolate:brown|
a fire engine:red|a flamingo:pink|milk:white|a raven:black|an emerald:green|a ruby:red|a sapphire:blue|a ripe strawberry:red|
a pumpkin:orange|an eggplant:purple""".replace("\n", "").split("|"))

YOUNG = dict(pair.split(":") for pair in """cat:kitten|dog:puppy|cow:calf|horse:foal|sheep:lamb|goat:kid|pig:piglet|duck:duckling|
chicken:chick|bear:cub|lion:cub|kangaroo:joey|frog:tadpole|goose:gosling|swan:cygnet|deer:fawn|owl:owlet|hare:leveret"""
             .replace("\n", "").split("|"))

SOUNDS = dict(pair.split(":") for pair in """cat:meows|dog:barks|cow:moos|sheep:bleats|horse:neighs|pig:grunts|duck:quacks|
lion:roars|owl:hoots|bee:buzzes|snake:hisses|frog:croaks|wolf:howls|mouse:squeaks|rooster:crows|elephant:trumpets"""
              .replace("\n", "").split("|"))

HOMES = dict(pair.split(":") for pair in """bee:a hive|bird:a nest|fox:a den|beaver:a lodge|spider:a web|horse:a stable|dog:a kennel|
rabbit:a burrow|ant:an anthill|bear:a den""".replace("\n", "").split("|"))

OPPOSITES = dict(pair.split(":") for pair in """hot:cold|big:small|up:down|day:night|fast:slow|happy:sad|light:dark|open:closed|
left:right|young:old|high:low|wet:dry|full:empty|hard:soft|long:short|early:late|rich:poor|loud:quiet|clean:dirty|
black:white|heavy:light|near:far|strong:weak|thick:thin|first:last|always:never|love:hate|win:lose|push:pull|
sweet:sour""".replace("\n", "").split("|"))

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

SIDES = {"triangle": "three", "square": "four", "rectangle": "four", "pentagon": "five", "hexagon": "six",
         "heptagon": "seven", "octagon": "eight"}

LEGS = {"spider": "eight", "insect": "six", "dog": "four", "bird": "two", "octopus": "eight arms and no",
        "cat": "four", "horse": "four", "ant": "six", "human": "two", "snake": "no", "bee": "six"}

QUANTITIES = [tuple(row.split(":")) for row in """days:a week:7|months:a year:12|hours:a day:24|minutes:an hour:60|
seconds:a minute:60|days:a leap year:366|weeks:a year:52|years:a century:100|years:a decade:10|
letters:the English alphabet:26|seasons:a year:4|colours:a rainbow:7|strings:a violin:4|planets:the solar system:8|
cards:a standard deck:52|keys:a standard piano:88|centimetres:a metre:100|metres:a kilometre:1000|
grams:a kilogram:1000|bits:a byte:8|squares:a chessboard:64|eggs:a dozen:12|continents:the world:7"""
              .replace("\n", "").split("|")]

# name, questions that ask for it, answer sentence
SINGLE = [
    ("largest planet", "the largest planet [in the solar system|of our solar system]", "The largest planet is Jupiter."),
    ("smallest planet", "the smallest planet [in the solar system|of our solar system]", "The smallest planet is Mercury."),
    ("closest planet", "the planet closest to the sun", "The planet closest to the sun is Mercury."),
    ("red planet", "the red planet", "The red planet is Mars."),
    ("ringed planet", "the planet with the most famous rings", "The planet with the most famous rings is Saturn."),
    ("largest ocean", "the largest ocean [on Earth|in the world]", "The largest ocean is the Pacific Ocean."),
    ("highest mountain", "the highest mountain [on Earth|in the world]", "The highest mountain is Mount Everest."),
    ("largest animal", "the largest animal [on Earth|in the world]", "The largest animal is the blue whale."),
    ("fastest land animal", "the fastest land animal", "The fastest land animal is the cheetah."),
    ("tallest animal", "the tallest animal", "The tallest animal is the giraffe."),
    ("largest bird", "the largest bird", "The largest bird is the ostrich."),
    ("largest continent", "the largest continent", "The largest continent is Asia."),
    ("smallest continent", "the smallest continent", "The smallest continent is Australia."),
    ("largest country", "the largest country [on Earth|in the world]", "The largest country by area is Russia."),
    ("hardest mineral", "the hardest natural mineral", "The hardest natural mineral is diamond."),
    ("star of Earth", "the star closest to Earth", "The star closest to Earth is the sun."),
    ("boiling point", "the boiling point of water", "Water boils at 100 degrees Celsius."),
    ("freezing point", "the freezing point of water", "Water freezes at 0 degrees Celsius."),
    ("formula of water", "the chemical formula of water", "The chemical formula of water is H2O."),
    ("symbol of gold", "the chemical symbol of gold", "The chemical symbol of gold is Au."),
    ("symbol of iron", "the chemical symbol of iron", "The chemical symbol of iron is Fe."),
    ("symbol of oxygen", "the chemical symbol of oxygen", "The chemical symbol of oxygen is O."),
    ("symbol of silver", "the chemical symbol of silver", "The chemical symbol of silver is Ag."),
    ("largest desert", "the largest hot desert [on Earth|in the world]", "The largest hot desert is the Sahara."),
    ("moon of Earth", "the natural satellite of Earth", "The natural satellite of Earth is the moon."),
    ("first month", "the first month of the year", "The first month of the year is January."),
    ("last month", "the last month of the year", "The last month of the year is December."),
    ("first letter", "the first letter of the alphabet", "The first letter of the alphabet is A."),
    ("last letter", "the last letter of the alphabet", "The last letter of the alphabet is Z."),
    ("author of Hamlet", "the author of Hamlet", "The author of Hamlet is William Shakespeare."),
    ("painter of Mona Lisa", "the painter of the Mona Lisa", "The painter of the Mona Lisa is Leonardo da Vinci."),
    ("first on moon", "the first person on the moon", "The first person on the moon was Neil Armstrong."),
    ("river of Egypt", "the longest river in Egypt", "The longest river in Egypt is the Nile."),
    ("language of Brazil", "the language of Brazil", "The language of Brazil is Portuguese."),
    ("language of Austria", "the language of Austria", "The language of Austria is German."),
    ("currency of Japan", "the currency of Japan", "The currency of Japan is the yen."),
    ("currency of the USA", "the currency of the United States", "The currency of the United States is the dollar."),
    ("currency of Germany", "the currency of Germany", "The currency of Germany is the euro."),
    ("king of beasts", "the king of the beasts", "The king of the beasts is the lion."),
    ("square root of 81", "the square root of 81", "The square root of 81 is 9."),
]
