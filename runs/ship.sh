#!/usr/bin/env bash
# From a model that answers (runs/small.sh) to the one that is bundled, FOLDER/mini: in 8 bits, its confidence calibrated on dev questions and its
# words for it (likely, unsure, not found) chosen on the pocket questions; then its scores on the dev and test questions.
#
#   MODEL=folder runs/ship.sh FOLDER DATA       FOLDER has the corpus
set -euo pipefail
out=$1 data=$2
name_of() { basename "${1%.*}"; }
evaluate() { # model, questions, passages read, name
  echo "evaluate --model $1 --corpus $out/corpus --questions $2 --read $3 --report $out/reports/$4.json --predictions $out/predictions/$4.jsonl"
}
{
  echo "compress $MODEL --out $out/packed"
  judged=""
  for file in "$data"/questions/{nq,triviaqa,webquestions,curatedtrec}-dev.*; do
    [ -e "$file" ] || continue
    evaluate "$out/packed" "$file" 5 "calibrate-$(name_of "$file")" # as many as `ask` reads
    judged+=" $out/predictions/calibrate-$(name_of "$file").jsonl"
  done
  echo "calibrate --model $out/packed --predictions$judged --out $out/calibrated"
} | realmlm batch - --log "$out/seconds.jsonl"
python "$(dirname "$0")/../benchmarks/unanswerable.py" "$out/calibrated" "$out/judged.jsonl"
{
  echo "calibrate --model $out/calibrated --thresholds $out/judged.jsonl --out $out/mini"
  for file in "$data"/questions/*-dev.* "$data"/questions/*-test.*; do
    evaluate "$out/mini" "$file" 20 "mini-$(name_of "$file")"
  done
} | realmlm batch - --log "$out/seconds.jsonl"
