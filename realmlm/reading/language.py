"""Is a question in English? A guess from its letters and commonest words, for a remark beside an answer."""

import re


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ENGLISH = _words(
    "who whom whose what when where which why how the of and is are was were does did do has have had can "
    "many much long old that this there from with for by on at to it its it's what's who's"
)
# of languages in the same letters, without those that are English words too: what questions begin with, and
# other common words
_ASKING = _words(
    "wer wen wem wessen wann wo warum welche welcher welches wie wieviel wieviele qui quoi quand où pourquoi "
    "quel quelle quels quelles combien comment qu'est quién quien qué cuál cuándo dónde cómo cuánto cuántos "
    "chi cosa quando dove perché quale quali quanto quanti quem onde qual quantos wat waar wanneer waarom "
    "welk kto gdzie kiedy jak hvem hva hvor når vem vad kuka mikä missä nerede"
)
_COMMON = _words(
    "der das den dem ist sind hat wurde wurden waren ein eine einer und von für auf nicht im nach bei aus zu "
    "le la les du des de au aux ce cette est sont une et dans pour avec el los las del en es fue más una "
    "para por con que che il lo gli di della nel nella più è sono os da dos foi são uma em het een zijn "
    "werd van voor jest är och på"
)


def looks_english(question: str) -> bool:
    """False only where something speaks for another language: its letters, or its commonest words."""
    letters = [letter for letter in question if letter.isalpha()]
    if sum(ord(letter) > 0x24F for letter in letters) > len(letters) / 3:  # past all Latin letters
        return False
    words = {word.casefold().replace("’", "'") for word in _WORD.findall(question)}
    other = 2 * len(words & _ASKING) + len(words & _COMMON)
    return other < 2 or other <= len(words & _ENGLISH)
