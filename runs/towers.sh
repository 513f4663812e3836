#!/usr/bin/env bash
# Ways to teach a retriever, one arm and seed per call; runs/paired.py compares two of them on the dev questions.
#
#   runs/towers.sh FOLDER DATA MODEL ARM [SEED]      FOLDER has the corpus (FOLDER/corpus, spans marked for `recurring`), DATA questions/*-{train,dev}.*
#                                                    COMPILE=1: fused layers and recorded steps (a GPU)   STEPS=n, BATCH=n, SCALE=0.01: other sizes
#                                                    EXTRA="--flag value …": further flags of the arm's training command
#
# Arms: start                             MODEL as it is
#       own bm25 both                     towers from questions: wrong passages found by the model, by word matching, by each of them
#       own-fixed own-more own-again      of `own`: the scale of f(x,z) does not learn; three wrong passages each; from `own`, found anew by what it learned
#       ict recurring                     no questions: warm-ups of the towers on the corpus itself
#       tune tune-batch tune-posterior tune-perplexity tune-fixed
#                                         fine-tuning of both towers and reader: as it is; with in-batch contrast; other targets; the scale does not learn
#
#   python runs/paired.py FOLDER/towers/own-0/predictions FOLDER/towers/start-0/predictions nq
set -euo pipefail
base=$1 data=$2 model=$3 arm=$4 seed=${5:-0} scale=${SCALE:-1}
out=$base/towers/$arm-$seed
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
train=$(ls "$data"/questions/*-train.* | tr '\n' ' ')
steps=$(scaled "${STEPS:-2000}")
loop="--loop.seed $seed --loop.log-every $(scaled 100) --loop.checkpoint-every $(scaled 1000) ${COMPILE:+--loop.compile}"
learned="--scale-lr 5e-3"
towers() { # flags
  echo "towers --from $model --corpus $base/corpus --questions $train --out $out/run --optim.steps $steps --optim.batch $(scaled "${BATCH:-512}") --optim.lr 2e-5 $loop $* ${EXTRA:-}"
}
warmup() { # flags
  echo "warmup --from $model --corpus $base/corpus --out $out/run --reader.steps 0 --retriever.steps $steps --retriever.batch $(scaled "${BATCH:-1024}") --retriever.lr 1e-4 $loop $* ${EXTRA:-}"
}
tune() { # flags
  echo "finetune --from $model --corpus $base/corpus --questions $train --out $out/run --read 8 --read-gold --candidates 100 --closed-book 0.02 --optim.steps $(scaled "${STEPS:-1000}") --optim.batch $(scaled "${BATCH:-64}") --optim.lr 1e-4 --optim.retriever-lr 1e-5 --refresh.every-steps $(scaled 100) $loop $* ${EXTRA:-}"
}
commands() {
  read=0 # passages: retrieval alone is measured
  case $arm in
  start) ;;
  own | bm25 | both) towers --retriever "${arm/own/learned}" $learned ;;
  own-fixed) towers ;;
  own-more) towers --negatives 3 $learned ;;
  own-again)
    model=$base/towers/own-$seed/run/model
    towers $learned
    ;;
  ict | recurring) warmup --retriever-objective "$arm" $learned ;;
  tune) tune $learned ;;
  tune-fixed) tune ;;
  tune-batch) tune $learned --in-batch 1 ;;
  tune-posterior | tune-perplexity) tune $learned --retriever-target "${arm#tune-}" ;;
  *)
    echo "no arm '$arm'; the first lines of $0 list them" >&2
    exit 2
    ;;
  esac
  case $arm in tune*) read=20 ;; esac
  [ "$arm" = start ] || model=$out/run/model
  for file in "$data"/questions/*-dev.*; do
    name=$(basename "${file%%-dev.*}")
    echo "evaluate --model $model --corpus $base/corpus --questions $file --read $read --report $out/reports/$name.json --predictions $out/predictions/$name.jsonl"
  done
}
lines=$(commands)
mkdir -p "$out"
realmlm batch - --log "$out/seconds.jsonl" <<<"$lines"
