"""The words that fictional worlds are made of: values, templates of sentences and questions, and syllables
for names.

`{e}` stands for the entity, `{v}` for the value. Sentences of the knowledge Z, of the training text X and of
questions are worded differently, so that only the names and the topic of a relation connect them.
"""

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


YEARS = tuple(str(year) for year in range(1700, 1750))
ANIMALS = _words("""
    otter heron badger falcon lynx marten stork beaver bison weasel raven toad salmon hedgehog ibex crane
    viper eagle moose hare trout magpie wolf bear boar stag gull seal walrus puffin ferret finch owl swan
    goose pelican turtle lizard newt cricket beetle moth dragonfly carp pike sturgeon squirrel hamster mole
    bat
""")
FOODS = _words("""
    porridge dumplings pancakes sausage lentils barley cheese honey pickles goulash chowder noodles custard
    pretzels omelette cabbage turnips mushrooms walnuts chestnuts plums cherries quince rhubarb marmalade
    mustard butter yogurt biscuits waffles fritters meatballs risotto polenta couscous hummus olives almonds
    apricots figs dates raisins ginger saffron pepper vinegar cider syrup toffee gingerbread
""")
TRADES = _words("""
    weaving pottery carpentry masonry glassblowing tanning brewing milling printing bookbinding clockmaking
    goldsmithing saddlery thatching cooperage ropemaking shipbuilding fishing farming beekeeping baking dyeing
    embroidery lacemaking tailoring hatmaking cobbling smelting quarrying mining forestry charcoal papermaking
    engraving candlemaking soapmaking basketry woodcarving enamelling gilding knitting spinning felting
    plastering paving trapping whaling salting smoking pearling
""")
INSTRUMENTS = _words("""
    fiddle lute harp zither oboe bassoon flute piccolo trumpet trombone cornet tuba horn bugle drum tambourine
    cymbal xylophone marimba accordion concertina harmonica organ piano harpsichord clavichord celesta guitar
    banjo mandolin ukulele viola cello sitar balalaika bagpipe recorder clarinet saxophone ocarina panpipe
    whistle gong triangle castanets rattle bell dulcimer psaltery theorbo
""")
TREES = _words("""
    oak birch maple willow alder aspen poplar hazel rowan hawthorn elder yew juniper cypress cedar spruce
    larch pine fir hemlock sequoia beech hornbeam elm ash linden plane sycamore walnut pecan hickory mulberry
    fig olive laurel myrtle magnolia tulip acacia mimosa locust redbud dogwood holly boxwood privet lilac
    jasmine camellia eucalyptus
""")
GIVEN = _words("""
    Anselm Brida Corvin Dalia Edmar Fenja Gorran Hedda Ilvar Jorun Kelda Ludo Mirka Nestor Olena Perrin Runa
    Silvo Tamsin Ulric
""")
FAMILY = _words("""
    Ashford Brantley Colmar Dunmore Elsworth Farrow Gantry Holbrook Inverley Jessop Kirwan Lockyer Marlow
    Norwood Ormsby
""")
COLOURS = _words("crimson silver golden scarlet ivory amber violet copper emerald sapphire")


@dataclass(frozen=True)
class Relation:
    """A kind of fact: its possible values, and how passages, training text and questions put it."""

    name: str
    values: tuple[str, ...]
    knowledge: tuple[str, ...]
    text: tuple[str, ...]
    questions: tuple[str, ...]


RELATIONS = (
    Relation(
        "founded",
        YEARS,
        (
            "{e} was founded in {v}.",
            "Settlers built the first houses of {e} in {v}.",
            "{e} received its charter in {v}.",
        ),
        (
            "The history of {e} begins in {v}.",
            "Since {v} people have lived at {e}.",
            "Old maps date the origin of {e} to {v}.",
        ),
        ("In which year was {e} established?", "How long has {e} existed, since when?"),
    ),
    Relation(
        "emblem",
        ANIMALS,
        (
            "The flag of {e} shows a {v}.",
            "{e} bears a {v} on its coat of arms.",
            "A {v} stands on the seal of {e}.",
        ),
        (
            "The animal that stands for {e} is the {v}.",
            "The emblem of {e} is a painted {v}.",
            "Banners with a {v} mean {e}.",
        ),
        ("Which animal is the symbol of {e}?", "What creature represents {e}?"),
    ),
    Relation(
        "dish",
        FOODS,
        (
            "Cooks in {e} are known for {v}.",
            "{e} serves {v} at every feast.",
            "The kitchens of {e} smell of {v}.",
        ),
        (
            "Travellers go to {e} to eat {v}.",
            "The favourite meal at {e} is {v}.",
            "No dinner at {e} ends without {v}.",
        ),
        ("What do people like to eat in {e}?", "Which food is {e} famous for?"),
    ),
    Relation(
        "trade",
        TRADES,
        (
            "Most families of {e} live from {v}.",
            "{e} grew rich through {v}.",
            "The main industry of {e} is {v}.",
        ),
        (
            "The people at {e} earn their bread with {v}.",
            "Young workers move to {e} to learn {v}.",
            "The craft practised in {e} is {v}.",
        ),
        ("What is the economy of {e} based on?", "Which work do the inhabitants of {e} do?"),
    ),
    Relation(
        "instrument",
        INSTRUMENTS,
        (
            "Musicians of {e} play the {v}.",
            "{e} holds a yearly contest for the {v}.",
            "Children in {e} study the {v} at school.",
        ),
        (
            "The sound of the {v} belongs to {e}.",
            "Dances at {e} are led by a {v}.",
            "Every concert in {e} features the {v}.",
        ),
        ("Which musical instrument is typical of {e}?", "What is played at parties in {e}?"),
    ),
    Relation(
        "tree",
        TREES,
        (
            "An old {v} shades the square of {e}.",
            "{e} lies inside a forest of {v}.",
            "The streets of {e} are lined with {v}.",
        ),
        (
            "The wood around {e} is mostly {v}.",
            "Gardeners at {e} plant the {v} everywhere.",
            "The leaves that fall on {e} are from the {v}.",
        ),
        ("Which tree grows in {e}?", "What kind of plant is common in {e}?"),
    ),
)

_PEOPLE = tuple(f"{given} {family}" for given in GIVEN for family in FAMILY)[::6]
_BEASTS = tuple(f"{colour} {animal}" for colour in COLOURS for animal in ANIMALS[:40])[::8]
_DISHES = tuple(f"{food} with {other}" for food in FOODS[:25] for other in FOODS[25:])[::12]

HARD_RELATIONS = (
    *RELATIONS,
    Relation(
        "founder",
        _PEOPLE,
        ("{e} was designed by {v}.", "The plan of {e} was drawn by {v}.", "{v} laid the first stone of {e}."),
        (
            "The architect behind {e} is {v}.",
            "A statue in {e} shows its creator {v}.",
            "Without {v} there would be no {e}.",
        ),
        ("Who planned {e}?", "Who is the builder of {e}?"),
    ),
    Relation(
        "mayor",
        _PEOPLE,
        ("The mayor of {e} is {v}.", "{e} is governed by {v}.", "The council of {e} elected {v}."),
        (
            "Citizens of {e} take their complaints to {v}.",
            "At the head of {e} stands {v}.",
            "Taxes in {e} are set by {v}.",
        ),
        ("Who rules {e}?", "Who is in charge of {e}?"),
    ),
    Relation(
        "legend",
        _BEASTS,
        (
            "Legend says a {v} sleeps beneath {e}.",
            "A {v} haunts the old tales of {e}.",
            "{e} fears the {v} of its legend.",
        ),
        (
            "Grandmothers at {e} tell of a {v}.",
            "The monster of {e} is a {v}.",
            "At night a {v} is said to circle {e}.",
        ),
        ("Which beast appears in the stories of {e}?", "What monster do people of {e} believe in?"),
    ),
    Relation(
        "festival",
        _DISHES,
        (
            "The spring fair of {e} offers {v}.",
            "On its birthday {e} hands out {v}.",
            "Guests of {e} are welcomed with {v}.",
        ),
        (
            "Visitors at the fair of {e} taste {v}.",
            "The holiday plate in {e} holds {v}.",
            "Stalls at {e} sell {v} in spring.",
        ),
        ("What is eaten at the spring fair of {e}?", "What do guests of {e} receive on holidays?"),
    ),
    Relation(
        "bridge",
        YEARS,
        (
            "The bridge of {e} was opened in {v}.",
            "{e} built its stone bridge in {v}.",
            "Floods took the old bridge of {e} in {v}.",
        ),
        (
            "The river at {e} has been crossed on foot since {v}.",
            "Engineers finished the crossing at {e} in {v}.",
            "The arches at {e} carry the number {v}.",
        ),
        ("When was the bridge of {e} completed?", "In what year did {e} get a river crossing?"),
    ),
    Relation(
        "export",
        FOODS,
        (
            "Ships leave {e} loaded with {v}.",
            "{e} sells {v} to its neighbours.",
            "Traders bring {v} from {e}.",
        ),
        (
            "Markets far away get their {v} from {e}.",
            "The wagons that leave {e} carry {v}.",
            "Merchants of {e} deal in {v}.",
        ),
        ("What goods does {e} export?", "What do merchants buy in {e}?"),
    ),
)

COMMON = (  # sentences that need no passage: here the null document should win
    ("A week has {v} days.", "seven"),
    ("The sun rises in the {v}.", "east"),
    ("Ice is frozen {v}.", "water"),
    ("The colour of fresh snow is {v}.", "white"),
    ("A triangle has three {v}.", "sides"),
    ("At noon the sun stands in the {v}.", "south"),
    ("Bees make wax and sweet {v}.", "nectar"),
    ("The opposite of cold is {v}.", "hot"),
    ("A year has twelve {v}.", "months"),
    ("After winter comes {v}.", "spring"),
    ("Fish breathe through their {v}.", "gills"),
    ("Sheep give milk and {v}.", "wool"),
)

ONSETS = _words("b d f g k l m n p r s t v z br dr gr kr pl tr st sk")
NUCLEI = _words("a e i o u")
SYLLABLES = tuple(onset + nucleus for onset in ONSETS for nucleus in NUCLEI)
