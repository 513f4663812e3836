#!/usr/bin/env bash
# Table 2 in miniature on a fictional world: what each part of REALM is worth, measured on held-out entities: no sentence of
# joint training and no question is about them. One seed per call, about 20 minutes on one CPU core; runs/world_table.py combines the seeds.
#
#   runs/world_study.sh FOLDER SEED [WORLD]        STEPS=400
set -euo pipefail
out=$1/seed-$2 seed=$2 world=${3:-hard} steps=${STEPS:-400}
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$out"
w=$out/world
# WORDS=1: towers without layers, which bear and want higher rates (docs/decisions/022)
towers="" finding_lr=2e-3 retriever_lr=9e-4
[ -n "${WORDS:-}" ] && towers="--towers words" finding_lr=5e-3 retriever_lr=${RETRIEVER_LR:-5e-3}
loop="--loop.seed $seed --loop.threads $OMP_NUM_THREADS --loop.log-every 50"
joint="--k 5 --optim.steps $steps --optim.batch 32 --optim.lr 3e-3 --optim.retriever-lr $retriever_lr --refresh.no-process $loop"
often="--refresh.every-steps 50"
from="--from $out/warmup/model --corpus $out/knowledge"
other="--text $out/sentences"

arm() { # name, flags of pretrain
  local name=$1
  shift
  echo "pretrain $from --out $out/$name $joint $*"
  measure "$name" "$out/$name/model"
}
measure() { # name, model: held-out sentences before any question
  echo "evaluate --model $2 --corpus $out/knowledge --questions $w/clozes-held-out.jsonl --read ${passages:-4} --device cpu --report $out/reports/$1.json --predictions $out/predictions/$1.jsonl"
}
questions() { # name, model: the same fine-tuning, then held-out questions
  echo "finetune --from $2 --corpus $out/knowledge --questions $w/questions-train.jsonl --out $out/questions-$1 --candidates 500 --optim.steps 450 --optim.batch 32 --optim.lr 3e-3 --optim.retriever-lr 1e-3 $loop"
  echo "evaluate --model $out/questions-$1/model --corpus $out/knowledge --questions $w/questions-held-out.jsonl --device cpu --report $out/reports/questions-$1.json --predictions $out/predictions/questions-$1.jsonl"
}
{
  echo "world --out $w --kind $world --seed $seed"
  for name in knowledge sentences; do
    echo "corpus $w/$name.jsonl --out $out/$name --tokenizer $w/tokenizer.json --max-wordpieces 64 --workers 1"
    [ -d "$out/$name/spans" ] || echo "spans $out/$name --tagger phrases --phrases $w/phrases.txt --workers 1"
  done
  echo "model --corpus $out/knowledge --out $out/begin --layers 2 --hidden 64 --heads 4 --projection 64 --max-query 32 --seed $seed $towers"
  echo "warmup --from $out/begin --corpus $out/knowledge --out $out/warmup --pairing own --reader.steps 300 --reader.batch 64 --reader.lr 3e-3 --retriever.steps 350 --retriever.batch 128 --retriever.lr $finding_lr $loop"
  measure warmup "$out/warmup/model"
  arm realm $other $often
  arm pointing $other $often --pointing 1
  arm in-batch $other $often --in-batch 1
  arm pointing-in-batch $other $often --pointing 1 --in-batch 1
  arm glimpses $other $often --glimpses 0.5
  arm scale $other $often --scale-lr 1e-2
  arm perplexity $other $often --retriever-target perplexity
  arm frozen $other $often --freeze-retriever "$steps"
  arm uniform $other $often --masking uniform
  arm random-span $other $often --masking random-span
  arm stale $other --refresh.every-steps 0
  arm stale-in-batch $other --refresh.every-steps 0 --in-batch 1
  arm stale-own $other --refresh.every-steps 0 --search-with index # the old index, asked by the query tower it was made beside
  arm rare $other --refresh.every-steps 200
  arm rare-own $other --refresh.every-steps 200 --search-with index
  passages=5 arm no-null $other $often --no-null-document # in the null document's place one more is read
  arm same-text $often
  arm own-passage $often --own-passage
  echo "warmup $from --out $out/ict --reader.steps 0 --retriever.steps $steps --retriever.batch 128 --retriever.lr 2e-3 $loop"
  measure ict "$out/ict/model"
  echo "graft --towers $out/realm/model --reader $out/warmup/model --out $out/realm-retriever"
  measure realm-retriever "$out/realm-retriever"
  echo "graft --towers $out/warmup/model --reader $out/realm/model --out $out/realm-reader"
  measure realm-reader "$out/realm-reader"
  for name in realm pointing warmup frozen ict; do questions "$name" "$out/$name/model"; done
} | realmlm batch - --log "$out/seconds.jsonl"
