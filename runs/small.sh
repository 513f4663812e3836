#!/usr/bin/env bash
# A small model that reads: towers and reader start from a published sentence encoder (gte-small: 12 layers of 384), and everything else comes from
# questions. The reader learns over 20 passages, given paragraphs among them, with a passage logit and answers in titles; then the towers learn from
# question and passage; then the weight of word matching is fitted. Run it again and it continues where it stopped.
#
#   python runs/questions.py RAW DATA                           the questions (DATA/questions, DATA/small)
#   ENCODER=folder runs/small.sh FOLDER DATA                    DATA/articles: JSON lines; COMPILE=1 on a GPU; SCALE=0.01: a rehearsal
#
# The encoder was supervised on question pairs, Natural Questions among them: say so beside every number.
set -euo pipefail
out=$1 data=$2 scale=${SCALE:-1} seed=${SEED:-0}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
mkdir -p "$out"
loop="--loop.seed $seed --loop.log-every $(scaled 50) --loop.checkpoint-every $(scaled 1000) ${COMPILE:+--loop.compile}"
open=$(ls "$data"/questions/*-train.* | tr '\n' ' ')
given=$(ls "$data"/questions/*-reading.* | tr '\n' ' ')
dev=$(ls "$data"/questions/*-dev.* | tr '\n' ' ')
evaluate() { # name, model
  for file in $dev; do
    of=$1-$(basename "${file%%-dev.*}")
    echo "evaluate --model $2 --corpus $out/corpus --questions $file --read 20 --report $out/reports/$of.json --predictions $out/predictions/$of.jsonl"
  done
  echo "evaluate --model $2 --corpus $out/small --questions $data/small/small-dev.jsonl --read 5 --report $out/reports/$1-small.json --predictions $out/predictions/$1-small.jsonl"
}
{
  echo "corpus $data/articles --out $out/corpus --tokenizer $ENCODER --max-wordpieces 128"
  echo "corpus $data/small/paragraphs.jsonl --out $out/small --tokenizer $ENCODER --max-wordpieces 128"
  echo "model --corpus $out/corpus --out $out/begin --checkpoint $ENCODER --projection 384 --freeze-embeddings --pooling mean --reading together --read-titles --seed $seed"
  echo "finetune --from $out/begin --corpus $out/corpus --questions $open $given --out $out/reading --read 20 --read-gold --candidates 100 --closed-book 0.02 --passage-logit --title-answers --scale-lr 5e-3 --optim.steps $(scaled 2250) --optim.batch $(scaled 64) --optim.lr 1e-4 --optim.retriever-lr 0 $loop"
  evaluate reading "$out/reading/model"
  echo "towers --from $out/reading/model --corpus $out/corpus --questions $open --out $out/towers --scale-lr 5e-3 --optim.steps $(scaled 500) --optim.batch $(scaled 512) --optim.lr 2e-5 $loop"
  evaluate towers "$out/towers/model"
  for model in reading towers; do
    echo "hybrid --model $out/$model/model --corpus $out/corpus --questions $dev --limit $(scaled 700) --out $out/hybrid-$model --report $out/reports/weights-$model.json"
    evaluate "hybrid-$model" "$out/hybrid-$model"
  done
} | realmlm batch - --log "$out/seconds.jsonl"
