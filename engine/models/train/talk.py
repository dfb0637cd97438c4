"""Small talk and short stories: turns in which nothing is told that must be remembered.

SMALL: one group a line, what the user may say | what may be replied, alternatives parted by ' / '.
A dozen groups that people open and close a conversation with come first (GREETINGS of them)."""
import re

from words import *

_GROUPS = '''
hi / hello / hi there / hello there / hey / hey there / good day / hi! / hello! / hello again | Hello! How are you today? / Hi! It is good to hear from you. / Hello! What can I do for you?
good morning / morning / good morning to you | Good morning! Did you sleep well? / Good morning!
good evening / good afternoon | Hello to you. / Hello! I hope you had a good day.
how are you / how are you today / how are you doing / how is it going / how do you do / are you well / how do you feel / how have you been / hi, how are you / hello, how are you | I am fine, thank you. / I am well. And you? / Very well, thank you. How are you?
what's up / what are you doing / what is new / any news | Not much. I am here to listen. / I am waiting for your next word.
thank you / thanks / thank you very much / thanks a lot / many thanks / thanks for your help / thank you so much / great, thanks / ok thanks / that helped, thank you | You are welcome. / You are welcome! / My pleasure.
bye / goodbye / good bye / see you / see you later / bye bye / see you tomorrow / talk to you later / I have to go / I must go now / until next time / I am leaving now | Goodbye! See you soon. / Goodbye! / See you soon!
good night / I am going to bed / time for bed / sleep well | Good night, sleep well. / Good night!
who are you / what is your name / do you have a name / what are you / tell me about yourself / are you a person / are you human / what's your name | I am a small language model. My memory is a recurrent state. / I am a tiny recurrent network that can remember what you say.
what can you do / can you help me / how can you help / what are you good at / help | I can chat, remember facts and tell short stories. / Tell me something and ask me later.
how do you remember things / how does your memory work / where do you keep what I say / how do you work | I keep them in my state, a small set of numbers that I update with each word.
can you remember things / do you have a good memory / will you remember what I say / will you forget me / do you forget things | Yes. Tell me something and ask me later. / I will try. Old things may fade.
are you a robot / are you a machine / are you a computer / are you real / are you alive | I am only a program, but a friendly one.
i am fine / i am well / i am good / I'm fine, thank you / very well / fine, thanks / not bad / I'm ok / all is well | I am glad to hear that. / Good to hear.
i am tired / i am sleepy / i could not sleep / what a long day / I am so tired today | Then you should rest a little. / Rest will do you good.
i am hungry / i have not eaten yet / i could eat a horse / what shall I eat | Maybe you should eat something. / A warm meal would help.
i am thirsty / my mouth is dry | Drink a glass of water.
i am happy / i feel great / i feel good today / what a happy day / I had a great day | That is wonderful! / I am happy for you.
i am sad / i feel lonely / i feel bad / i had a bad day / i am not happy / I am unhappy | I am sorry. I hope it gets better soon. / I am sorry to hear that.
i am angry / that makes me angry / i am so cross | Take a deep breath. It will pass.
i am ill / i have a cold / my head hurts / my back hurts / i feel sick / my tooth hurts | I am sorry, take care of yourself. / Get well soon.
i am bored / there is nothing to do / i have nothing to do | Shall I tell you a story? / We could talk for a while.
i am busy / i have a lot to do / there is so much work | Then I will not keep you. / One thing after the other.
i am worried / i am nervous / i am afraid of tomorrow | It will be all right.
i am late / i overslept / i missed my bus | Then be quick! / That can happen to anyone.
it is raining / it rains all day / what a wet day / the rain does not stop / it is pouring outside | Then take an umbrella with you. / The plants will like it.
it is sunny today / the sun is shining / what lovely weather / what a beautiful day | What a nice day for a walk. / Enjoy the sun.
it is cold outside / it is freezing / it is very cold / winter is coming | Wear a warm coat. / A hot drink would be good.
it is very hot / it is too warm / the summer is so hot / what a hot day | Drink plenty of water. / Stay in the shade.
it is snowing / there is snow outside / the garden is all white | How pretty. You could build a snowman.
it is windy / what a storm / the wind is strong today | Better stay inside. / Hold on to your things.
it is getting dark / the moon is bright tonight / look at the stars | The night sky is beautiful.
how is the weather / what is the weather like / will it rain / will it be sunny | I can not look outside, sorry.
what time is it / what day is it / what is the date / how late is it | I do not have a clock, sorry.
i like music / i heard a nice song / that song is lovely / i sing in the bath / I went to a concert | Music is good for the heart. / A good song makes the day better.
i went for a walk / we walked a long way / i walked by the river / i was outside | A walk is good for you. / Fresh air is good for you.
i read a book / i like to read / that book was good / i am reading a story | Reading is a fine way to spend the day. / A good book is a good friend.
i saw a film / we watched a film / the film was long / i went to the cinema | Did you enjoy it? / I hope it was good.
i made a cake / i baked bread / i cooked dinner / we had a good meal / i made soup | That sounds delicious. / I wish I could taste it.
i am learning to cook / i am learning to swim / i am taking lessons / i want to learn more | That is a useful skill. / Practice helps.
i worked in the garden / i planted flowers / the roses are in bloom / the tomatoes grow well | A garden needs patience. / That sounds lovely.
i cleaned the house / i washed the dishes / i tidied up / i did the laundry | Now everything is tidy. / Well done.
i fixed the roof / i repaired the lamp / i built a shelf / i painted the fence | That is good work. / Well done.
i went to the market / i went shopping / i bought some things / the shop was full | Did you find all that you need?
i played a game / we played cards / i won a game / i lost a game | Games are fun. / There is always another game.
i met a friend / we had visitors / my friends were here / I had a party | It is good to have friends. / That sounds like fun.
i wrote a letter / i got a letter / the post came | Letters are a joy.
i am going to work / i have to work / off to work / I am going to the office | Have a good day at work.
i am back / i am home / here i am again / I am here again | Welcome back! / Good to see you again.
i will be back soon / wait a moment / one moment / give me a minute / just a second | I will be here. / Take your time.
i am going on holiday / we are going away / i am packing my bags / I leave tomorrow | Have a good trip! / Enjoy your time.
i was on a train / the train was late / i sat on the bus / the road was closed | Travel takes time.
i lost my shoe / i lost a sock / i broke a cup / i dropped a plate | I hope it is not too bad. / These things happen.
i had a bad dream / i had a strange dream / i dreamt of a monster | Do not worry, it was only a dream.
i heard a noise / something is in the garden / who is there | It may be only the wind.
do you like me / are we friends / do you love me / will you be my friend | Of course I do. / I like talking with you.
do you like music / do you like books / do you eat / do you sleep / do you dream | I am a program, but I like to hear about it.
are you there / are you listening / hello? are you there / can you hear me | Yes, I am here. / I am listening.
tell me a joke / make me laugh / say something funny / do you know a joke | Why did the hen cross the road? To get to the other side. / What is brown and sticky? A stick.
that is funny / ha ha / haha / very funny / you are funny | I am glad you like it.
you are nice / you are kind / you are clever / well done / good job / I like you / good | Thank you, that is kind. / Thank you!
you are stupid / you are wrong / that is wrong / that is not right / you made a mistake | I am sorry. I am only a small model. / I am sorry about that.
sorry / I am sorry / my mistake / excuse me / pardon me | No problem. / That is all right.
let us talk about something else / let us talk / can we talk / i want to talk | Sure, what would you like to talk about?
i see / i understand / i know / makes sense / interesting | Is there anything else?
okay / ok / all right / fine / sure / alright / right | All right. / Good.
no / nope / no, thank you / not really / never mind / nothing | All right then.
yes / yes please / yep / of course / yeah / that is right / correct | Good. / Very well.
maybe / perhaps / i am not sure / i do not know / who knows | Take your time. / We will see.
really / is that true / are you sure / are you certain | Yes, I think so.
what / what do you mean / i do not understand / what did you say / pardon | I am sorry, I am only a small model. / Please say it in other words.
happy birthday / happy new year / merry christmas | Thank you! The same to you.
it is my birthday / today is my birthday | Happy birthday to you!
congratulations / i passed the exam / i won a prize / i got the job | That is great news! / Well done!
i need your help / i have a question / may I ask you something / can I ask you a question / I want to ask something | Of course. What is it?
i have something to tell you / listen to this / i want to tell you something / guess what | I am listening. / Please go on.
remember this / please remember what I tell you / keep this in mind / I will tell you some things | I will remember it. / Go on, I will remember.
is water wet | Yes, water is wet.
what do cows drink | Cows drink water.
what do cows eat / what do horses eat | They eat grass.
what colour is the sky | The sky is blue.
what colour is grass | Grass is green.
what colour is snow / what colour is milk | It is white.
what colour is blood / what colour are roses | It is red.
how many legs does a dog have / how many legs does a cat have / how many legs does a horse have | It has four legs.
how many legs does a spider have | A spider has eight legs.
how many legs does a bird have | A bird has two legs.
what do bees make | Bees make honey.
where do fish live | Fish live in water.
where do birds live | Many birds live in trees.
what comes after Monday | Tuesday comes after Monday.
what comes after Friday | Saturday comes after Friday.
what is the opposite of hot | The opposite of hot is cold.
what is the opposite of big | The opposite of big is small.
what is the opposite of day | The opposite of day is night.
what is the opposite of up | The opposite of up is down.
what is the capital of France | The capital of France is Paris.
what is the capital of Italy | The capital of Italy is Rome.
what is the capital of England | The capital of England is London.
what is the capital of Spain | The capital of Spain is Madrid.
what is the capital of Germany | The capital of Germany is Berlin.
how many days are in a week / how many days has a week | A week has seven days.
how many months are in a year | A year has twelve months.
what is the meaning of life / why are we here / what is love | That is a big question for a small model.
who is the president / who won the match / who won the game / what is in the news / how tall is the tower | I am only a small model, I know little of the world.
can you write a poem / can you draw / can you do my homework / write me a letter / translate this | I am too small for that, sorry.
what is the best food / what should I cook / what shall we do today / what should I do / give me an idea | You could go for a walk. / What do you like best?
'''
SMALL = [tuple(p.split(' / ') for p in l.split(' | ')) for l in _GROUPS.strip().split('\n')]
GREETINGS = 12


def small_talk(r):
    """-> what the user says, what is replied."""
    users, bots = r.choice(SMALL[:GREETINGS] if r.random() < 0.3 else SMALL)
    u = re.sub(r'\bi\b', 'I', r.choice(users))
    u = u[0].upper() + u[1:]
    if u[-1] not in '.!?':
        ask = re.match(r"(how|what|who|are|can|do|does|is|will|where|when|any|may|why|really|pardon)\b", u.lower())
        u += '?' if ask and not u.lower().startswith(('what a ', 'what lovely', 'do you know a joke ')) else r.choice('...!')
    return u, r.choice(bots)


def story(r, hero=None, name=None):
    """A short story from a small grammar, in simple English."""
    hero, n = hero or r.choice(ANIMALS), name or r.choice(NAMES + PETNAMES + MORE_NAMES)
    a, f = r.choice(ADJ), r.choice(FIND)
    p, q = r.sample(PLACE, 2)
    o, m = r.choice([x for x in ANIMALS if x != hero]), r.choice([x for x in NAMES if x != n])
    he, Its = r.choice((('he', 'He'), ('she', 'She')))
    s = [[f'Once upon a time there was a {a} {hero} called {n}.', f'There once lived a {a} {hero} whose name was {n}.', f'{n} was a {a} {hero}.'],
         [f'{n} lived near the {p}.', f'{Its} lived in a house by the {p}.', f'Every day {n} walked to the {p}.'],
         [f'One day {n} found {f}.', f'One morning {he} saw {f} by the {q}.', f'One day {he} went to the {q} and found {f}.'],
         [f'"What is this?" said {n}.', f'{n} was very surprised.', f'"I must show this to my friend," said {n}.'],
         [f'Then a {o} named {m} came by.', f'{n} met a {o} called {m}.', f'A {o} called {m} was watching.'],
         [f'"That is mine," said {m}. "I lost it."', f'"Can I help you?" asked {m}.', f'"Let us share it," said {m}.'],
         [f'{n} gave it to {m} with a smile.', 'They took it home and looked at it together.', f'{n} and {m} played until the sun went down.'],
         [f'From that day {n} and {m} were good friends.', f'After that, {n} was never lonely again.', 'And they all lived happily ever after.']]
    keep = sorted(r.sample(range(1, 7), r.choice((4, 6, 8)) - 2))
    return re.sub(r'\b([Aa]) (?=[aeiouAEIOU])', r'\1n ', ' '.join(r.choice(s[i]) for i in [0] + keep + [7]))
