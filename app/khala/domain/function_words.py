"""Function words of English, German, French and Spanish: articles, pronouns, prepositions, conjunctions, auxiliaries.

They say nothing about the subject of a text. Words that are also nouns or verbs of another of these languages, such as
`war`, `man`, `bin` and `plus`, are not in the lists.
"""

ENGLISH = """
a about after again all also am an and any are as at be because been before being both but by can could did do does
doing each either else few for from get got had has have having he her here hers him his how i if in into is it its
itself just me might mine more most must my neither no nor not of off on onto or other our ours out over own please
shall she should so some such than that the their theirs them then there these they this those to too tool until up
upon us use used uses using very was we were what when where whether which while who whom whose why will with within
without would you your yours
"""
GERMAN = """
aber als am an auch auf aus bei bis da das dass dem den der des die dies diese dieser doch durch ein eine einem einen
einer eines er es für gegen habe haben hat ich ihr ihre im ist ja kann kein keine mein meine meinem meinen mich mir
mit nach nicht noch nur ob oder sein seine sich sie sind so um und uns unser unter vom von vor wann warum was wem wen
wenn wer werden wie wird wo zu zum zur über
"""
FRENCH = """
à au aux avec ce ces cet cette chez dans de des du elle elles en est et il ils je la le les leur leurs lui ma mais me
mes moi mon ne nos notre nous on ou où par pas pour pourquoi quand que quel quelle quelles quels qui sa se ses si sont
sur ta te tes toi tu un une vos votre vous
"""
SPANISH = """
al como con cual cuando cuál cuándo de del desde donde dónde el ella ellos en entre es esa ese eso esta este esto está
han hay la las lo los me mi mis muy no nos o para pero por porque que qué quien quién se ser si sin sobre su sus
también te tu tus un una unos y ya yo
"""

FUNCTION_WORDS = frozenset(word for words in (ENGLISH, GERMAN, FRENCH, SPANISH) for word in words.split())
