#!/usr/bin/env bash
# All the way from text to answers on a fictional world, from scratch, on a CPU, in minutes.
# Expected on held-out entities (any seed): recall@1 at least .90, the masked value right in at least .85 with retrieval, at most .10 without.
#
#   runs/world.sh [FOLDER]      SEED=1 WORLD=small
set -euo pipefail
out=${1:-work/world}
seed=${SEED:-0}
world=${WORLD:-small}
threads=${THREADS:-1} # tiny models: a second thread costs more than it gains
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=$threads
step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }

[ -n "${1:-}" ] || rm -rf "$out" # what another run left there; a folder that was named is left as it is
[ ! -e "$out" ] || { echo "$out already exists; name another folder, or remove it first" >&2; exit 2; }
step "1/6  a world: entities that exist nowhere else, so that every answer must be found"
realmlm world --out "$out/world" --kind "$world" --seed "$seed"
w=$out/world

step "2/6  passages and the spans worth masking"
for name in knowledge sentences; do
  realmlm corpus "$w/$name.jsonl" --out "$out/$name" --tokenizer "$w/tokenizer.json" --max-wordpieces 64
  realmlm spans "$out/$name" --tagger phrases --phrases "$w/phrases.txt"
done
realmlm model --corpus "$out/knowledge" --out "$out/begin" --layers 2 --hidden 64 --heads 4 --projection 64 --max-query 32 --seed "$seed"
loop="--loop.seed $seed --loop.threads $threads --loop.log-every 25"

step "3/6  warm-up: the reader learns to read, the retriever to find (inverse cloze task)"
realmlm warmup --model "$out/begin" --corpus "$out/knowledge" --out "$out/warmup" --pairing own \
  --reader.steps 300 --reader.batch 64 --reader.lr 3e-3 \
  --retriever.steps 350 --retriever.batch 128 --retriever.lr 2e-3 $loop

step "4/6  joint pre-training: no labels, only sentences with a word masked; watch recall@1 rise and the index being swapped"
realmlm pretrain --model "$out/warmup/model" --corpus "$out/knowledge" --text "$out/sentences" --out "$out/pretrain" --k 5 \
  --optim.steps 250 --optim.batch 32 --optim.lr 3e-3 --optim.retriever-lr 9e-4 --refresh.every-steps 50 \
  --probe "$w/clozes-held-out.jsonl" --probe-every 25 $loop

step "5/6  questions: the same fine-tuning for REALM and for the model that was only warmed up (ORQA)"
for name in pretrain warmup; do
  realmlm finetune --model "$out/$name/model" --corpus "$out/knowledge" --questions "$w/questions-train.jsonl" --out "$out/questions-$name" \
    --candidates 500 --optim.steps 450 --optim.batch 32 --optim.lr 3e-3 --optim.retriever-lr 1e-3 $loop
done

step "6/6  measured on held-out entities: no sentence of joint training and no question is about them"
python runs/world_answers.py "$out"
