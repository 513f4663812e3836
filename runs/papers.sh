#!/usr/bin/env bash
# A model that answers learns to read papers as people have them (runs/papers): rounds of fine-tuning its reader on their questions, among some of what it
# has learned before; its towers stay. Two hours on 2 CPU cores. Run it again and it continues where it stopped.
#
#   python runs/questions.py RAW DATA; python runs/tables.py WIKITABLEQUESTIONS DATA; python runs/everyday.py DATA; python runs/papers.py DATA
#   runs/papers.sh FOLDER DATA                  MODEL=mini: what it begins with   ROUNDS="third": one of them alone   SEED=n   SCALE=0.01: a rehearsal
#
# FOLDER/third/model is the result; runs/ship.sh makes the bundled one of it. The third round has folders of near twins: the same form and roles for other subjects.
set -euo pipefail
out=$1 data=$2 scale=${SCALE:-1} seed=${SEED:-0}
papers=$(dirname "$0")/papers/learn
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
some() { shuf -n "$(scaled "$1")" --random-source=<(yes "$seed"); }
rounds=${ROUNDS:-first second third} model=${MODEL:-mini}
first="clubs homes leisure news offices technical" second="definitions handbooks lists manuals"
third="employers journeys meetings portraits products tenancies"
files() { for name in "$@"; do echo "$data/questions/$name-reading.jsonl"; done; }
before() { # round, how many of everyday papers, tables, SQuAD and NQ
  local round=$1 name count
  mkdir -p "$out/$round-before"
  for name in everyday tables squad nq; do
    count=$2 && shift
    some "$count" < "$data/questions/$name-reading.jsonl" > "$out/$round-before/$name.jsonl"
  done
}
learn() { # round, folders of its corpus, steps, rate, folders that are new
  echo "corpus $(for name in $2; do echo -n "$papers/$name/docs "; done)--out $out/corpus-$1 --tokenizer ${MODEL:-mini} --max-wordpieces 128"
  echo "finetune --from $model --corpus $out/corpus-$1 --questions $(files $5 | tr '\n' ' ')$(ls "$out/$1-before"/*.jsonl | tr '\n' ' ')--out $out/$1 --read 5 --read-gold --candidates 20 --closed-book 0.02 --passage-logit --title-answers --max-answer 20 --rivals 2 --optim.steps $(scaled "$3") --optim.batch 8 --optim.lr $4 --optim.retriever-lr 0 --loop.seed $seed --loop.log-every 20 --loop.checkpoint-every 60 --loop.bf16"
}
mkdir -p "$out"
for round in $rounds; do
  case $round in
  first)
    before first 150 150 150 50
    learn first "$first" 480 5e-5 "$first"
    ;;
  second)
    before second 70 80 130 40
    cat $(files $first) | some 320 > "$out/second-before/papers.jsonl"
    learn second "$first $second" 190 3.5e-5 "$second"
    ;;
  third)
    before third 70 80 130 60
    cat $(files $first $second) | some 400 > "$out/third-before/papers.jsonl"
    learn third "$first $second $third" 125 3.5e-5 "$third"
    ;;
  *) echo "no round $round; the rounds are first, second and third" >&2 && exit 2 ;;
  esac
  model=$out/$round/model
done | realmlm batch - --log "$out/seconds.jsonl"
