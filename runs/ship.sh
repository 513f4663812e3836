#!/usr/bin/env bash
# From a model that answers (runs/small.sh) to the one that is bundled, FOLDER/mini: in 8 bits, with a weight of word matching for few documents, how sure it is and its words for it (likely, unsure,
# not found) found from its answers to questions about papers (runs/papers/calibrate), answerable and not, and to the pocket questions, with
# and without the passages that say them; then its scores on dev and test questions.
#
#   MODEL=folder runs/ship.sh FOLDER DATA       FOLDER has the corpus, DATA/small the documents (runs/questions.py)
set -euo pipefail
out=$1 data=$2
name_of() { basename "${1%.*}"; }
evaluate() { # model, questions, passages read, name
  echo "evaluate --model $1 --corpus $out/corpus --questions $2 --read $3 --report $out/reports/$4.json --predictions $out/predictions/$4.jsonl"
}
unanswerable() { python "$(dirname "$0")/../benchmarks/unanswerable.py" "$@"; }
{
  [ -d "$out/small" ] || echo "corpus $data/small/paragraphs.jsonl --out $out/small --tokenizer $MODEL --max-wordpieces 128"
  echo "hybrid --model $MODEL --corpus $out/small --questions $data/small/small-dev.jsonl --weight 1 --out $out/weighed --report $out/reports/few.json"
  echo "compress $out/weighed --out $out/packed"
} | realmlm batch - --log "$out/seconds.jsonl"
for name in first second; do
  papers=$(dirname "$0")/papers/calibrate/$name
  unanswerable "$out/packed" --documents "$papers/docs" --questions "$papers/questions.jsonl" --unanswerable "$papers/unanswerable.jsonl" --out "$out/judged-$name.jsonl"
done
unanswerable "$out/packed" --out "$out/judged-pocket.jsonl"
{
  echo "calibrate --model $out/packed --predictions $out/judged-first.jsonl $out/judged-second.jsonl $out/judged-pocket.jsonl --thresholds $out/judged-second.jsonl --out $out/mini"
  for file in "$data"/questions/*-dev.* "$data"/questions/*-test.*; do
    [ ! -e "$file" ] || evaluate "$out/mini" "$file" 20 "mini-$(name_of "$file")"
  done
} | realmlm batch - --log "$out/seconds.jsonl"
