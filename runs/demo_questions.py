"""The demo's first page: five questions to the model that comes with realmlm, in Python."""

import time

import realmlm

QUESTIONS = (
    "Which poison was used to put Socrates to death?",
    "Where in Italy did Stradivari build his violins?",
    "On which island did dodos live?",
    "What is Don Quixote's horse called?",
    "Which insect turned up inside a computer that Grace Hopper's group was running?",
)


def main() -> None:
    begun = time.monotonic()
    realm = realmlm.load().read(realmlm.pocket)
    print(f"loaded and read in {time.monotonic() - begun:.1f} s (from the cache next time)")
    for question in QUESTIONS:
        begun = time.monotonic()
        answer = realm.ask(question, read=2)
        print(f"\n{question}   ({time.monotonic() - begun:.2f} s)\n{answer}")


if __name__ == "__main__":
    main()
