#!/usr/bin/env bash
# From `runs/mini.sh warm FOLDER DATA` to the bundled model, FOLDER/mini: in 8 bits, calibrated, with its scores on dev and test.
#
#   runs/ship.sh FOLDER DATA
set -euo pipefail
out=$1 data=$2
name_of() { basename "${1%.*}"; }
evaluate() { # model, questions, passages read, name
  echo "evaluate --model $1 --corpus $out/corpus --questions $2 --read $3 --report $out/reports/$4.json --predictions $out/predictions/$4.jsonl"
}
{
  echo "compress $out/questions-warmup/model --out $out/packed"
  judged=""
  for file in "$data"/questions/*-dev.*; do
    evaluate "$out/packed" "$file" 5 "calibrate-$(name_of "$file")" # as many as `ask` reads
    judged+=" $out/predictions/calibrate-$(name_of "$file").jsonl"
  done
  echo "calibrate --model $out/packed --predictions$judged --out $out/mini"
  for file in "$data"/questions/*-dev.* "$data"/questions/*-test.*; do
    evaluate "$out/mini" "$file" 20 "mini-$(name_of "$file")"
  done
} | realmlm batch - --log "$out/seconds.jsonl"
