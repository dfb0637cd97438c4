"""Word lists of the training conversations.

names.txt     given names that training draws from (facts from the US Census of 1990, public domain,
              and some from many lands)
heldout.txt   names that no training text may contain: only the evaluation uses them
The lists below are this project's own."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def read_words(name):
    with open(os.path.join(HERE, name)) as f:
        return f.read().split()


MORE_NAMES = read_words('names.txt')
HELD_OUT = read_words('heldout.txt')

# Common names: half of all draws, so that the usual ones are known best.
NAMES = '''Anna Ben Clara David Emma Frank Grace Henry Isla Jack Kate Leo Mia Noah Olivia Paul Queenie Rosa Sam Tina
Uma Victor Wendy Xavier Yara Zoe Adam Alice Amy Andrew Arthur Bella Bob Carla Carlos Cathy Charlie Chloe Chris Daisy Dan
Diana Dora Edward Elena Ella Eric Eva Felix Fiona Fred George Gina Hannah Harry Helen Ida Igor Ivan Jane Jasper Jenny Jim
Joe John Julia Karl Karen Kevin Kim Laura Lena Liam Lily Linda Lisa Lola Louis Lucas Lucy Luke Maria Mark Martin Mary Max
Megan Mike Milo Molly Nadia Nancy Nick Nina Nora Oscar Otto Peter Petra Philip Polly Rachel Ralph Rita Robert Robin Roger
Ruby Ruth Sally Sara Sean Simon Sofia Stella Steve Susan Tara Ted Theo Thomas Toby Tom Tony Vera Violet Walter Will'''.split()
PETNAMES = '''Rex Fluffy Spot Max Bella Lucky Buddy Milo Luna Rocky Daisy Shadow Ginger Pepper Socks Tiger Biscuit Cookie
Snowy Patch Coco Misty Oreo Rusty Smokey Simba Toffee Whiskers Ziggy Bandit Nibbles Pip Hazel Muffin Pickle Duke Bruno'''.split()
CITIES = '''London Paris Rome Berlin Madrid Oslo Vienna Prague Dublin Athens Lisbon Cairo Tokyo Delhi Sydney Boston Chicago
Dallas Denver Toronto Lima Moscow Warsaw Helsinki Stockholm Brussels Geneva Milan Venice Naples Munich Hamburg Lyon Bergen
Krakow Porto Seville Bristol Leeds York Oxford Glasgow Cork Nairobi Lagos Accra Mumbai Seoul Beijing Manila Hanoi Bangkok
Perth Quebec Austin Seattle Portland Miami Havana Bogota Quito Santiago Istanbul Budapest Riga Tallinn Zurich Dakar'''.split()
COLOURS = 'red blue green yellow orange purple pink brown black white grey gold silver violet turquoise crimson beige navy'.split()
ANIMALS = '''dog cat horse rabbit parrot hamster goat duck pig cow sheep mouse owl fox bear wolf tiger lion elephant monkey
turtle frog snake fish dolphin whale penguin eagle bee spider hedgehog squirrel donkey zebra giraffe camel otter swan'''.split()
PETS = 'dog cat horse rabbit parrot hamster goat turtle snake pony goldfish mouse'.split()
FOODS = '''pizza pasta soup bread cheese rice fish cake apples bananas oranges grapes cherries chocolate honey pancakes salad
potatoes carrots tomatoes mushrooms beans eggs noodles curry sushi tacos waffles porridge toast cookies strawberries melon'''.split()
DRINKS = 'tea coffee water milk lemonade juice cocoa cider wine beer'.split()
JOBS = '''baker teacher doctor nurse farmer painter pilot singer writer cook driver dentist lawyer gardener fisherman plumber
carpenter tailor butcher soldier sailor engineer judge actor dancer waiter clerk librarian scientist programmer firefighter
policeman postman barber builder miner shepherd potter musician astronaut'''.split()
SPORTS = 'football tennis golf swimming running cycling chess skiing rowing boxing hockey climbing sailing archery judo'.split()
DAYS = 'Monday Tuesday Wednesday Thursday Friday Saturday Sunday'.split()
MONTHS = 'January February March April May June July August September October November December'.split()
SEASONS = 'spring summer autumn winter'.split()
INSTR = 'piano guitar violin flute drums trumpet cello harp banjo clarinet'.split()
ROOMS = ['kitchen', 'garden', 'bedroom', 'garage', 'attic', 'cellar', 'bathroom', 'hall', 'office', 'shed', 'living room', 'car', 'library', 'barn']
SPOTS = ['on the table', 'under the bed', 'behind the door', 'in the drawer', 'on the shelf', 'in the box', 'under the chair',
         'near the window', 'in my bag', 'on the roof', 'by the lamp', 'in the basket', 'under the sofa', 'behind the clock']
THINGS = '''book phone wallet umbrella hat bag letter map lamp ring watch coat ticket camera scarf knife ladder
hammer basket bottle candle passport box clock cup spoon pen torch key brush laptop charger purse helmet'''.split()
PLURALS = 'keys glasses gloves shoes scissors boots papers tickets socks skates'.split()   # they ARE somewhere
COLTHINGS = '''car house bike door hat coat bag boat kite shirt chair lamp wall roof dress sofa van gate scarf cup
jacket umbrella phone bedroom kitchen carpet'''.split()
PEOPLE = '''sister brother mother father friend boss teacher neighbour cousin uncle aunt daughter son wife husband
grandmother grandfather doctor mum dad niece nephew landlord dentist'''.split()
CODES = ['door code', 'bike code', 'safe code', 'room number', 'lucky number', 'house number', 'locker number', 'bus number', 'PIN',
         'seat number', 'gate code', 'phone code']
CARS = 'Toyota Ford Volvo Fiat Honda Mazda Skoda Renault Opel Nissan Subaru Tesla Jeep Audi Kia'.split()
LANGS = 'French German Spanish Italian Russian Chinese Japanese Arabic Dutch Greek Polish Turkish Hindi Swedish Danish Finnish'.split()
WISHES = ['learn to fly', 'see the sea', 'write a book', 'buy a boat', 'run a marathon', 'learn to dance', 'build a house', 'open a cafe',
          'travel by train', 'plant a garden', 'visit the moon', 'sail round the world', 'play in a band', 'climb a mountain', 'keep bees']
FEARS = 'spiders snakes heights thunder mice dogs water ghosts clowns bees darkness needles crowds lifts'.split()
SYL1 = 'Ba Be Bo Da De Do Fa Fe Ga Go Ha Jo Ka Ke Ki La Le Lo Ma Me Mi Mo Na Ne No Pa Pe Ra Re Ro Sa Se Ta Te To Va Ve Vi Wa Ya Za Ze Zo Bri Cla Dra Fre Gra Kra Pli Sto Tra Xi Qua Thi Sha'.split()
SYL2 = 'ba bi da do fa ga go la li lo lu ma mi mo na ne ni no pa po ra ri ro sa si so ta ti to va vi za zo ria lan der vin mar len bar nok dell wick ton'.split()
SYL3 = 'n s r x l ck th m nd ra na la ly ta no ro mi sh t k'.split() + [''] * 6
LEAD = ['By the way,', 'So,', 'Well,', 'Oh,', 'Hey,', 'Listen.', 'Okay.', 'Please,', 'Hm,', 'Now,']
REMARK = ['I see.', 'Tell me more.', 'That is interesting.', 'I understand.', 'Is that so?', 'What happened then?', 'Thank you for telling me.', 'Go on.']
ADJ = 'little big old young happy sad brave clever lazy hungry kind shy funny quiet tiny proud gentle lonely'.split()
PLACE = 'forest village garden river hill farm sea mountain castle town field lake'.split()
FIND = ['a shiny stone', 'an old key', 'a red ball', 'a lost bird', 'a small boat', 'a golden leaf', 'a warm hat', 'a sweet apple', 'a tiny door', 'a paper map', 'a broken toy', 'a silver bell']
