#!/usr/bin/env bash
# Hybrid search, f + λ · BM25: the λ with the best recall on dev questions, stored with the model (FOLDER/hybrid), and what it finds and answers
# beside the same model without it and beside BM25 alone.
#
#   MODEL=folder-or-mini runs/hybrid.sh FOLDER DATA
#
# FOLDER has the corpus (runs/mini.sh warm makes it), DATA the questions/*-dev.* in any accepted format, EntityQuestions among them. LIMIT=1000 of each.
set -euo pipefail
out=$1 data=$2 model=${MODEL:-mini} limit=${LIMIT:-1000}
mkdir -p "$out"
dev=$(ls "$data"/questions/*-dev.* | tr '\n' ' ')
evaluate() { # name, flags
  echo "evaluate --corpus $out/corpus --questions $file --limit $limit --report $out/reports/$1-$(basename "${file%%-dev.*}").json ${*:2}"
}
{
  echo "hybrid --model $model --corpus $out/corpus --questions $dev --limit $limit --out $out/hybrid --report $out/reports/weights.json"
  for file in $dev; do
    evaluate vectors --model "$out/hybrid" --hybrid 0 --read 20
    evaluate hybrid --model "$out/hybrid" --read 20
    evaluate words --model "$out/hybrid" --retriever bm25 --read 0
  done
} | realmlm batch - --log "$out/seconds.jsonl"
