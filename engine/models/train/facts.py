"""What a user can tell about: families of facts, each with ways to tell, ask, answer and correct it.

In a template {s} is the subject ("dog"), {v} the value ("Rex"), {is} "is" or "are".  `no` answers a
question about a fact never told; it always holds "have not told" or "do not know"."""
import re

from words import *

FAVOURITES = {'colour': COLOURS, 'food': FOODS, 'animal': ANIMALS, 'drink': DRINKS, 'sport': SPORTS,
              'season': SEASONS, 'city': CITIES, 'day': DAYS, 'month': MONTHS, 'instrument': INSTR}
FAMS = []


def family(kind, subject, value, weight, share=None, **text):
    """subject(world) and value(world, subject) draw them; share: families that a question may mix up."""
    FAMS.append(dict(kind=kind, subj=subject, val=value, w=weight, share=share,
                     **{k: [t.strip() for t in v.strip().split('\n')] for k, v in text.items()}))


def nothing(w): return ''
def any_name(w, s): return w.name()
def pet_name(w, s): return w.name(True)
def city(w, s): return w.r.choice(CITIES)
def job(w, s): return w.r.choice(JOBS)
def third(w): return w.r.choice(w.third)
def person(w): return w.r.choice(PEOPLE)


family('myname', nothing, any_name, 2.5, 'name', tell='''My name is {v}.
I am called {v}.
Call me {v}.
I'm {v}.
Hi, I am {v}.
Hello, my name is {v}.
You can call me {v}.
The name is {v}.
My friends call me {v}.
Hi, I'm {v}.
{v} is my name.
Hey, {v} here.
Everybody calls me {v}.
My first name is {v}.''', ask='''What is my name?
Do you remember my name?
Who am I?
Can you tell me my name?
What's my name?
Say my name.
What am I called?
Do you know my name?
Do you still know who I am?
What was my name again?
Do you know what I am called?
Tell me my name.
Remind me, what is my name?''', ans='''Your name is {v}.
You are {v}.
You are called {v}.''', no='''You have not told me your name.
I do not know your name yet.''', fix='''Actually, my name is {v}.
Sorry, my name is really {v}.
Please call me {v} from now on.
I made a mistake, my name is {v}.
No, my name is {v}.
I changed my name to {v}.
Wait, my name is not that, it is {v}.''', ack='''Nice to meet you, {v}.
Hello {v}!
Hi {v}, how can I help?
Pleased to meet you, {v}.
Welcome, {v}.''')

family('myage', nothing, lambda w, s: str(w.r.randint(6, 99)), 1, tell='''I am {v} years old.
My age is {v}.
I'm {v} years old.
I am {v}.
I turned {v} this year.
I have just turned {v}.
I am {v} years of age.''', ask='''How old am I?
What is my age?
Do you know how old I am?
What age am I?
Do you remember my age?
Can you tell me how old I am?''', ans='''You are {v} years old.''', no='''You have not told me how old you are.
I do not know your age.''', fix='''Actually, I am {v} years old.
It was my birthday, I am {v} now.
Sorry, I am really {v} years old.
No, I am {v}.''', ack='''{v} is a good age.
You are {v}, good to know.
I see, {v} years.''')

family('mycity', nothing, city, 1.8, 'city', tell='''I live in {v}.
My home is in {v}.
I am from {v}.
I live in {v} these days.
I'm from {v}.
My flat is in {v}.
I have lived in {v} for years.
Home for me is {v}.
I come from {v}.
We live in {v}.
I have a small house in {v}.''', ask='''Where do I live?
Which city do I live in?
Do you remember where I live?
Where is my home?
Where am I from?
Do you know where I live?
What city am I from?
In which city is my home?
Can you tell me where I live?
Where was my home again?''', ans='''You live in {v}.''', no='''You have not told me where you live.
I do not know where you live.''', fix='''I moved to {v}.
Actually, I live in {v} now.
I have moved, I live in {v} now.
Sorry, I meant that I live in {v}.
No, I live in {v}.
We moved house, now I live in {v}.''', ack='''{v} is a nice place.
I have heard of {v}.
How is the weather in {v}?
I would like to see {v}.''')

family('myjob', nothing, job, 1.2, 'job', tell='''I am a {v}.
I work as a {v}.
My job is {v}.
I'm a {v}.
I earn my living as a {v}.
I am a {v} by trade.
I have been a {v} for years.
I found work as a {v}.''', ask='''What is my job?
What do I do for work?
Do you remember my job?
What do I do for a living?
Do you know my job?
What do I work as?
What's my job?
What is my work?
Can you tell me my job?''', ans='''You are a {v}.
You work as a {v}.''', no='''You have not told me your job.
I do not know your job.''', fix='''I changed my job, now I am a {v}.
Actually, I am a {v}.
I have a new job, I am a {v} now.
No, I am a {v}.
Sorry, I meant that I am a {v}.''', ack='''Being a {v} must be interesting.
A {v}, how nice.
A {v} has a lot to do.''')

family('myfav', lambda w: w.r.choice(list(FAVOURITES)), lambda w, s: w.r.choice(FAVOURITES[s]), 2.8, 'fav', tell='''My favourite {s} is {v}.
I like {v}, it is my favourite {s}.
The {s} I like best is {v}.
{v} is my favourite {s}.
My best-loved {s} is {v}.
For me the best {s} is {v}.
I like {v} more than any other {s}.
If you ask me for my favourite {s}, it is {v}.''', ask='''What is my favourite {s}?
Which {s} do I like best?
Do you remember my favourite {s}?
What's my favourite {s}?
Tell me my favourite {s}.
Do you know my favourite {s}?
What {s} do I like most?
Can you tell me which {s} I like best?
Which {s} is my favourite?''', ans='''Your favourite {s} is {v}.''', no='''You have not told me your favourite {s}.
I do not know your favourite {s}.''', fix='''Actually, my favourite {s} is {v}.
I changed my mind, my favourite {s} is {v} now.
No, my favourite {s} is {v}.
Sorry, I meant {v}, that is my favourite {s}.
These days my favourite {s} is {v}.''', ack='''{v} is a good choice.
I see, {v}.
{v}, why not.''')

family('petname', lambda w: w.r.choice(PETS), pet_name, 2.8, 'name', tell='''I have a {s} called {v}.
My {s}'s name is {v}.
My {s} is called {v}.
My {s} is named {v}.
I got a {s} and named it {v}.
I have a {s} named {v}.
We have a {s}, {v}.
The name of my {s} is {v}.
I bought a {s} and called it {v}.
At home I have a {s}, its name is {v}.
{v} is my {s}.''', ask='''What is my {s} called?
What is my {s}'s name?
What is the name of my {s}?
Do you remember the name of my {s}?
What's my {s} called?
What's my {s}'s name?
Do you know my {s}'s name?
How is my {s} called?
What did I name my {s}?
Tell me the name of my {s}.
Who is my {s}?
What was the name of my {s}?''', ans='''Your {s} is called {v}.''', no='''You have not told me about your {s}.
I do not know the name of your {s}.
You have not told me the name of your {s}.''', fix='''Actually, my {s} is called {v} now.
Sorry, I meant my {s} is called {v}.
Actually my {s} is called {v}.
No, my {s}'s name is {v}.
I gave my {s} a new name, {v}.
My {s} is called {v} now.''', ack='''{v} is a lovely name for a {s}.
Say hello to {v} for me.
{v} sounds like a good {s}.
Give {v} a treat from me.''')

family('relname', person, any_name, 2.8, 'name', tell='''My {s} is called {v}.
My {s}'s name is {v}.
I have a {s} named {v}.
The name of my {s} is {v}.
My {s} is named {v}.
{v} is my {s}.
I have a {s}, {v}.
My {s} {v} is here today.
I have a {s} called {v}.''', ask='''What is my {s} called?
What is my {s}'s name?
What is the name of my {s}?
Do you remember the name of my {s}?
Who is my {s}?
What's my {s}'s name?
Do you know my {s}'s name?
Tell me the name of my {s}.
What's my {s} called?
What was the name of my {s}?''', ans='''Your {s} is called {v}.''', no='''You have not told me the name of your {s}.
I do not know the name of your {s}.''', fix='''Actually, my {s} is called {v}.
Sorry, I meant my {s} is called {v}.
No, my {s}'s name is {v}.
I got it wrong, my {s} is called {v}.''', ack='''{v}, I will remember that.
I hope {v} is well.
Say hello to {v}.
{v} is a nice name.''')

family('relcity', person, city, 1.3, 'city', tell='''My {s} lives in {v}.
My {s} has a house in {v}.
My {s} is from {v}.
My {s} has a flat in {v}.
The home of my {s} is in {v}.
My {s} has lived in {v} for years.''', ask='''Where does my {s} live?
Which city does my {s} live in?
Do you remember where my {s} lives?
Do you know where my {s} lives?
Where is the home of my {s}?
In which city does my {s} live?
Where is my {s} from?''', ans='''Your {s} lives in {v}.''', no='''You have not told me where your {s} lives.
I do not know where your {s} lives.''', fix='''My {s} moved to {v}.
Actually, my {s} lives in {v} now.
No, my {s} lives in {v}.
Sorry, I meant my {s} lives in {v}.''', ack='''I hope your {s} likes {v}.
{v} is far from here.
So your {s} is in {v}.''')

family('reljob', person, job, 1.2, 'job', tell='''My {s} is a {v}.
My {s} works as a {v}.
My {s} found work as a {v}.
The job of my {s} is {v}.
My {s} has been a {v} for years.''', ask='''What does my {s} do?
What is the job of my {s}?
What is my {s}'s job?
What does my {s} do for work?
What does my {s} work as?
Do you remember what my {s} does?
Do you know the job of my {s}?''', ans='''Your {s} is a {v}.''', no='''You have not told me what your {s} does.
I do not know the job of your {s}.''', fix='''My {s} is a {v} now.
Actually, my {s} is a {v}.
No, my {s} is a {v}.
My {s} has a new job as a {v}.''', ack='''I see, a {v}.
A {v} works hard.
Your {s} must be a good {v}.''')

family('percity', third, city, 1.2, 'city', tell='''{s} lives in {v}.
{s} is in {v} now.
{s} is from {v}.
{s} has a flat in {v}.
{s} comes from {v}.
I know that {s} lives in {v}.''', ask='''Where does {s} live?
Where is {s}?
Which city does {s} live in?
Where is {s} from?
Do you know where {s} lives?
Do you remember where {s} lives?''', ans='''{s} lives in {v}.
{s} is in {v}.''', no='''You have not told me where {s} lives.
I do not know where {s} lives.''', fix='''{s} moved to {v}.
Actually, {s} lives in {v}.
No, {s} lives in {v}.
{s} has moved to {v} now.''', ack='''I see, {s} is in {v}.
I would like to see {v}.
{v}, a fine place for {s}.''')

family('perjob', third, job, 1.2, 'job', tell='''{s} is a {v}.
{s} works as a {v}.
{s} has a job as a {v}.
My friend {s} is a {v}.''', ask='''What does {s} do?
What is the job of {s}?
What is {s}'s job?
What does {s} do for a living?
What does {s} work as?
Do you remember what {s} does?''', ans='''{s} is a {v}.''', no='''You have not told me what {s} does.
I do not know what {s} does.''', fix='''{s} is a {v} now.
Actually, {s} is a {v}.
No, {s} is a {v}.
{s} has a new job as a {v}.''', ack='''So {s} is a {v}.
A {v}, good.
I hope {s} likes being a {v}.''')

family('perlike', third, lambda w, s: w.r.choice(FOODS + SPORTS + DRINKS), 1.2, tell='''{s} likes {v}.
{s} loves {v}.
{s} is fond of {v}.
What {s} likes is {v}.
{s} really likes {v}.''', ask='''What does {s} like?
What does {s} love?
Do you know what {s} likes?
Do you remember what {s} likes?
What is {s} fond of?''', ans='''{s} likes {v}.''', no='''You have not told me what {s} likes.
I do not know what {s} likes.''', fix='''Now {s} likes {v}.
Actually, {s} likes {v}.
No, {s} likes {v}.''', ack='''Many people like {v}.
I will remember that {s} likes {v}.
Who does not like {v}?''')

family('objcol', lambda w: w.r.choice(COLTHINGS), lambda w, s: w.r.choice(COLOURS), 2, 'colour', tell='''My {s} is {v}.
I have a {v} {s}.
I painted my {s} {v}.
The colour of my {s} is {v}.
I bought a {v} {s}.
My {s} is a {v} one.
I own a {v} {s}.''', ask='''What colour is my {s}?
Which colour is my {s}?
What is the colour of my {s}?
Do you remember the colour of my {s}?
Do you know what colour my {s} is?
Tell me the colour of my {s}.''', ans='''Your {s} is {v}.''', no='''You have not told me the colour of your {s}.
I do not know the colour of your {s}.''', fix='''I painted my {s} {v}.
Actually, my {s} is {v}.
My {s} is {v} now.
No, my {s} is {v}.
I have a new {s}, it is {v}.''', ack='''A {v} {s}, nice.
{v} is a pretty colour.
A {v} {s} must look good.''')


def thing(w): return w.r.choice(THINGS if w.r.random() < 0.8 else PLURALS)


def place(w, s): return ('in the ' + w.r.choice(ROOMS)) if w.r.random() < 0.5 else w.r.choice(SPOTS)


family('objloc', thing, place, 2, 'place', tell='''The {s} {is} {v}.
I put the {s} {v}.
I left the {s} {v}.
My {s} {is} {v}.
You can find the {s} {v}.
I have put my {s} {v}.
I am leaving the {s} {v}.''', ask='''Where {is} the {s}?
Where did I put the {s}?
Can you find the {s}?
Where {is} my {s}?
Where did I leave the {s}?
Do you know where the {s} {is}?
Do you remember where I put the {s}?
I need the {s}, where {is} it?
Tell me where the {s} {is}.''', ans='''The {s} {is} {v}.''', no='''You have not told me where the {s} {is}.
I do not know where the {s} {is}.''', fix='''I moved the {s}, now the {s} {is} {v}.
Actually, the {s} {is} {v}.
No, the {s} {is} {v}.
I have moved the {s}, it is {v} now.
I put the {s} {v} instead.''', ack='''I will remember where.
Good place for the {s}.
So the {s} {is} {v}.''')

family('code', lambda w: w.r.choice(CODES), lambda w, s: w.digits(w.r.choice((2, 3, 4))), 1.5, 'code', tell='''My {s} is {v}.
The {s} is {v}.
Remember that my {s} is {v}.
Please remember my {s}, it is {v}.
Keep this in mind: my {s} is {v}.
Note that the {s} is {v}.''', ask='''What is my {s}?
Do you remember my {s}?
Tell me my {s}.
What's my {s}?
What is the {s}?
I forgot my {s}, what is it?
Can you tell me the {s}?''', ans='''Your {s} is {v}.''', no='''You have not told me your {s}.
I do not know your {s}.''', fix='''I changed my {s} to {v}.
Actually, my {s} is {v}.
My new {s} is {v}.
No, my {s} is {v}.''', ack='''I will keep it safe.
I have it.
I will not forget it.''')

family('instr', lambda w: w.r.choice(['I'] + w.third[:4]), lambda w, s: w.r.choice(INSTR), 0.7, tell='''@S play@s the {v}.
@S can play the {v}.
@S learned to play the {v}.''', ask='''What instrument @q play?
Which instrument @q play?''', ans='''@Y play@s the {v}.''', no='''You have not told me that.
I do not know that.''', fix='''Now @S play@s the {v}.
Actually, @S play@s the {v}.''', ack='''The {v} sounds lovely.
Music is good.
The {v} is not easy.''')

family('mycar', nothing, lambda w, s: w.r.choice(CARS), 0.8, tell='''I drive a {v}.
My car is a {v}.
I have a {v}, it is an old car.
I bought a {v}.''', ask='''What car do I drive?
Which car do I have?
What make is my car?
Do you remember what car I drive?''', ans='''You drive a {v}.''', no='''You have not told me what car you drive.
I do not know what car you drive.''', fix='''I sold my car, I drive a {v} now.
Actually, I drive a {v}.
No, my car is a {v}.''', ack='''A {v} is a good car.
Drive with care.''')

family('mylang', nothing, lambda w, s: w.r.choice(LANGS), 0.8, tell='''I speak {v}.
My mother tongue is {v}.
I am learning {v}.
I grew up speaking {v}.''', ask='''Which language do I speak?
What language do I speak?
Do you remember which language I speak?''', ans='''You speak {v}.''', no='''You have not told me which language you speak.
I do not know which language you speak.''', fix='''Actually, I speak {v}.
No, the language I speak is {v}.''', ack='''{v} is a beautiful language.
I only know a little {v}.''')

family('mywish', nothing, lambda w, s: w.r.choice(WISHES), 0.8, tell='''I want to {v}.
My dream is to {v}.
One day I would like to {v}.
My plan is to {v}.''', ask='''What is my dream?
What do I want to do?
What is my plan?
Do you remember what I want to do?''', ans='''You want to {v}.''', no='''You have not told me what you want to do.
I do not know your dream.''', fix='''Actually, I want to {v}.
I changed my mind, I want to {v}.''', ack='''That is a fine dream.
I hope you will.''')

family('myfear', nothing, lambda w, s: w.r.choice(FEARS), 0.7, tell='''I am afraid of {v}.
I am scared of {v}.
What I fear most is {v}.''', ask='''What am I afraid of?
What am I scared of?
Do you remember what I fear?''', ans='''You are afraid of {v}.''', no='''You have not told me what you are afraid of.
I do not know what you are afraid of.''', fix='''Actually, I am afraid of {v}.
No, I am afraid of {v}.''', ack='''Many people are afraid of {v}.
Do not worry about {v}.''')

family('meeting', lambda w: w.r.choice(['meeting', 'exam', 'birthday', 'party', 'train', 'holiday', 'wedding', 'match', 'lesson', 'visit']),
       lambda w, s: w.r.choice(DAYS + MONTHS), 1.2, 'when', tell='''My {s} is in {v}.
The {s} is in {v}.
Remember, the {s} is in {v}.
I have my {s} in {v}.''', ask='''When is my {s}?
When is the {s}?
Do you remember when my {s} is?
Do you know when the {s} is?''', ans='''Your {s} is in {v}.''', no='''You have not told me when your {s} is.
I do not know when your {s} is.''', fix='''The {s} was moved, it is in {v} now.
Actually, my {s} is in {v}.
No, the {s} is in {v}.''', ack='''I will think of your {s}.
{v} will come soon.''')

WEIGHTS = [f['w'] for f in FAMS]


def article(t):
    return re.sub(r'\b([Aa]) (?=[aeiouAEIOU])', r'\1n ', t)


def fill(t, s, v):
    """Put subject and value in a template; @-marks handle I/you/third person."""
    if '@' in t:
        me = s == 'I'
        t = t.replace('@S', s).replace('@s', '' if me else 's')
        t = t.replace('@q', 'do I' if me else 'does ' + s).replace('@Y', 'You' if me else s)
    if s in PLURALS:
        t = t.replace('{is} it', 'are they').replace('it is', 'they are')
    t = t.replace('{is}', 'are' if s in PLURALS else 'is').replace('{s}', s).replace('{v}', v)
    t = re.sub(r'\bin (?=[A-Z]\w+day\b)', 'on ', t)
    return article(t) if '\0' not in (s, v) else t


def split_value(t, s, v):
    """The answer template as (before, value, after)."""
    a, b = fill(t, s, '\0').split('\0', 1)
    if a.endswith(' a ') and v[0] in 'aeiouAEIOU':
        a = a[:-1] + 'n '
    if a.endswith(' in ') and v.endswith('day'):
        a = a[:-3] + 'on '
    return a, v, b
