#!/usr/bin/env bash
# The same commands on real text: corpus, spans, a small model, warm-up, a short pre-training with the refresher alongside, an index, an answer.
# It shows that everything works at size and how long each stage takes; it is far too short to learn to read well.
#
#   runs/real_text.sh FOLDER SOURCE…        LAYERS=2 HIDDEN=128 STEPS=40 BATCH=8
set -euo pipefail
out=$1
shift
layers=${LAYERS:-2} hidden=${HIDDEN:-128} steps=${STEPS:-40} batch=${BATCH:-8}
export TOKENIZERS_PARALLELISM=false
timed() {
  local begun=$SECONDS
  realmlm "$@" >&2
  printf '%-10s %5d s\n' "$1" $((SECONDS - begun))
}

timed corpus "$@" --out "$out/corpus" --train-tokenizer 16000
timed spans "$out/corpus"
timed model --corpus "$out/corpus" --out "$out/begin" --layers "$layers" --hidden "$hidden" --heads 4
timed warmup --model "$out/begin" --corpus "$out/corpus" --out "$out/warmup" --reader.steps "$steps" --reader.batch $((2 * batch)) \
  --retriever.steps "$steps" --retriever.batch $((4 * batch)) --loop.log-every 10
timed pretrain --model "$out/warmup/model" --corpus "$out/corpus" --out "$out/pretrain" --k 4 --optim.steps "$steps" --optim.batch "$batch" \
  --refresh.every-steps $((steps / 4)) --refresh.shard 2048 --loop.log-every $((steps / 8))
timed index --model "$out/pretrain/model" --corpus "$out/corpus"
timed index --model "$out/pretrain/model" --corpus "$out/corpus" --kind ivf
timed ask --fill "Paris is the capital of [MASK]." --model "$out/pretrain/model" --corpus "$out/corpus"
