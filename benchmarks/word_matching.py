"""How long does word matching take? `python benchmarks/word_matching.py CORPUS QUESTIONS [--device cuda]`

Counts the words of a corpus anew, without writing them down, and matches questions one by one and 256
at once: 100 passages each, and the scores of 100 others, as hybrid search wants them.
"""

import argparse
import datetime
import os
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.index.bm25 import BM25Index, count_words
from realmlm.index.hybrid import DEPTH
from realmlm.index.words import Words

AT_ONCE = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    corpus = Corpus.open(options.corpus)
    texts = [question.text for question in read_questions(options.questions)][: 8 * AT_ONCE]
    queries = corpus.wordpieces.encode_queries(texts)
    begun = time.perf_counter()
    postings = count_words(Words(corpus.wordpieces), corpus, corpus.ids)
    counted = time.perf_counter() - begun
    megabytes = sum(array.nbytes for array in vars(postings).values()) / 2**20
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(f"{datetime.date.today()}, {options.device}, {threads}")
    made = f"{len(postings.ids_P):,} postings, {megabytes:.0f} MiB, counted in {counted:.1f} s"
    print(f"{len(corpus):,} passages: {made}")
    index = BM25Index(corpus, device=options.device)
    depth = min(DEPTH, len(index))
    others_QC = torch.from_numpy(np.random.default_rng(0).choice(corpus.ids, (len(queries), depth)))
    for many in (1, AT_ONCE):
        seconds = []
        for first in range(0, len(queries), many):
            some = slice(first, first + many)
            begun = time.perf_counter()
            index.search(queries[some], depth, ask_QC=others_QC[some]).hits.ids_QK.cpu()
            seconds.append((time.perf_counter() - begun) / len(queries[some]))
        each = median(seconds)
        print(f"{many:4} at once: {1000 * each:.2f} ms a question, {1 / each:,.0f} a second")


if __name__ == "__main__":
    main()
