"""The last page of runs/world.sh: what was learned, in a table, and three answers with their evidence."""

import json
import sys
from pathlib import Path
from typing import Literal

import realmlm
from realmlm.evaluation.scores import Report
from realmlm.settings import Evaluate

Retriever = Literal["learned", "bm25", "none"]

LIMIT = 400


def measure(out: Path, model: str, questions: str, retriever: Retriever, read: int) -> Report:
    return realmlm.evaluate(
        Evaluate(
            model=out / model / "model",
            corpus=out / "knowledge",
            questions=out / "world" / f"{questions}-held-out.jsonl",
            retriever=retriever,
            read=read,
            limit=LIMIT,
        )
    )


def main(out: Path) -> None:
    rows: dict[str, tuple[str, Retriever]] = {
        "no retrieval": ("pretrain", "none"),
        "BM25": ("pretrain", "bm25"),
        "warm-up only (ICT, ORQA)": ("warmup", "learned"),
        "REALM": ("pretrain", "learned"),
    }
    results = {
        name: (
            measure(out, model, "clozes", retriever, 4),
            measure(out, f"questions-{model}", "questions", retriever, 5),
        )
        for name, (model, retriever) in rows.items()
    }
    head = f"{'held-out entities':26s} {'before any question':^34s}   {'after question training':^31s}"
    print(
        f"\n{head}\n{'':26s} {'recall@1':>10s} {'recall@5':>10s} {'masked word':>12s}   {'recall@1':>10s} "
        f"{'recall@5':>10s} {'EM':>8s}"
    )
    for name, (cloze, question) in results.items():
        gold = [
            [f"{report.gold_recall[k].value:.1f}" if report.gold_recall else "–" for k in (1, 5)]
            for report in (cloze, question)
        ]
        assert cloze.exact_match
        assert question.exact_match
        first = f"{gold[0][0]:>10s} {gold[0][1]:>10s} {cloze.exact_match.value:12.1f}"
        print(f"{name:26s} {first}   {gold[1][0]:>10s} {gold[1][1]:>10s} {question.exact_match.value:8.1f}")
    print(
        f"\nPercent, {LIMIT} masked sentences and {LIMIT} questions. BM25 and REALM read with the same "
        "reader."
    )
    (out / "table.json").write_text(
        json.dumps({name: [report.as_json() for report in pair] for name, pair in results.items()}, indent=1)
    )

    realm = realmlm.load(out / "questions-pretrain" / "model", out / "knowledge")
    lines = (out / "world" / "questions-held-out.jsonl").read_text("utf-8").splitlines()
    for line in lines[5 :: len(lines) // 3]:
        question = json.loads(line)
        print(f"\n{question['question']}   (right: {question['answer'][0]})\n")
        print(realm.ask(question["question"], read=3))
    print(
        f'\nAsk it yourself: .venv/bin/realmlm ask "…" --model {out}/questions-pretrain/model --corpus '
        f"{out}/knowledge"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
