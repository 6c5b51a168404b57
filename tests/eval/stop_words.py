"""Words that say nothing about the subject of a question, in the languages of the sets."""

ENGLISH = """
a about after again all also always am an and any are as at be been before being but by can could did do does doing don
done ever every few for from get go goes going got had has have having he her here hers him his how i if in into is it
its just keep kind know let like long made make makes many may me mine more most much must my name need needs never no
not now of off often on once one only onto or other our ours out over own per please said same say says shall she should
since so some somebody someone something still such take tell than that the their them then there these they thing
things this those through to too under until up use used uses very want was way we were what when where whether which
while who whom whose why will with within without would you your yours
"""
GERMAN = """
aber als am an auch auf aus bei bin bis da damit dann das dass dem den der des die dies diese dieser doch ein eine einem
einen einer eines er es für gegen habe haben hat hatte ich ihr ihre im in ist ja kann kein keine man mein meine meinem
meinen meiner mich mir mit nach nicht noch nun nur ob oder ohne sein seine seit sich sie sind so soll über um und uns
unser unter viel vom von vor wann war waren warum was wegen welche welchem welchen welcher welches wem wen wenn wer
werde werden wie wieder wieviel will wird wo woher wohin womit wozu zu zum zur
"""
FRENCH = """
à ai as au aux avec avoir c ce ces cet cette chez combien comme comment d dans de depuis des dois doit donc du elle en
est et être eu faire fait faut il ils j je l la le les leur lui ma mais me mes moi mon n ne nos notre nous on ont où ou
par pas plus pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se ses si son sont suis sur t te
toi ton tous tout toute très tu un une va vais vers vous y
"""
SPANISH = """
a al algo como cómo con cuál cuáles cuando cuándo cuánto cuánta cuántos cuántas de debo del desde dónde donde el él ella
en era eran es eso esta está este esto fue ha hace hacer han hasta hay he la las le les lo los me mi mis más muy no nos
o otra otro para pero por porque qué que quién quien se ser si sí sido sin sobre son soy su sus también te tengo tiene
tu un una uno unos y ya yo
"""
ARABIC = """
ما ماذا من متى أين كيف كم هل هو هي في على عن إلى مع لي أنا التي الذي هذا هذه ذلك أو و ثم قد كان كانت لا لم لن بعد قبل
عند أي أية منذ حتى كل بين لماذا
"""
HINDI = """
का की के को में से पर है हैं था थी थे हूँ हूं मैं मेरा मेरी मेरे मुझे क्या कौन कब कहाँ कहां कैसे कितना कितने कितनी किस किसे
किसने क्यों और या भी ही तो ने यह वह इस उस जो एक कोई कुछ लिए साथ तक नहीं हो होता होती होते करना करता करती करते
किया कर रहा रही रहे गया गई
"""

STOP_WORDS = frozenset(word for words in (ENGLISH, GERMAN, FRENCH, SPANISH, ARABIC, HINDI) for word in words.split())
