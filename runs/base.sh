#!/usr/bin/env bash
# The large reader, from a published sentence encoder (MPNet-base: 12 layers of 768, a tokenizer of its own) to answers: the reader learns to read without
# labels, the towers learn from question and passage, and the reader learns to answer as in runs/small.sh: over 20 passages, given paragraphs among them,
# with a passage logit and answers in titles. Not shipped: it shows what a larger reader gives, and can teach others. Run it again and it continues where it stopped.
#
#   python runs/questions.py RAW DATA                           the questions (DATA/questions, DATA/small), the same as for runs/small.sh
#   ENCODER=folder runs/base.sh FOLDER DATA                     DATA/articles: JSON lines; COMPILE=1 on a GPU; SCALE=0.01: a rehearsal
#                                                               SEED=n: other batches   STAGES="…": some of them   PARTS=n: a step of reading in n parts, for less memory
#                                                               WARMUP, TOWERS, READING=n: steps of each
#
# The encoder was supervised on pairs, questions of Natural Questions, SQuAD and TriviaQA among them (its card has the list): say so beside every number.
set -euo pipefail
out=$1 data=$2 scale=${SCALE:-1} seed=${SEED:-0}
stages=${STAGES:-corpus warmup towers reading}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
mkdir -p "$out"
loop="--loop.seed $seed --loop.log-every $(scaled 50) --loop.checkpoint-every $(scaled 1000) ${COMPILE:+--loop.compile}"
parts="--optim.accumulate ${PARTS:-1}"
open=$(ls "$data"/questions/*-train.* | tr '\n' ' ')
given=$(ls "$data"/questions/*-reading.* | tr '\n' ' ')
dev=$(ls "$data"/questions/*-dev.* | tr '\n' ' ')
of="$out/base-$seed"
evaluate() { # name, model, flags
  for file in $dev; do
    local name=$1-$(basename "${file%%-dev.*}")
    echo "evaluate --model $2 --corpus $out/corpus --questions $file --report $of/reports/$name.json --predictions $of/predictions/$name.jsonl ${*:3}"
  done
}
stage() { [[ " $stages " == *" $1 "* ]]; }
{
  if stage corpus; then
    echo "corpus $data/articles --out $out/corpus --tokenizer $ENCODER --max-wordpieces 128"
    [ -d "$out/corpus/spans" ] || echo "spans $out/corpus"
    echo "corpus $data/small/paragraphs.jsonl --out $out/small --tokenizer $ENCODER --max-wordpieces 128"
    echo "model --corpus $out/corpus --out $out/begin --checkpoint $ENCODER --projection 768 --freeze-embeddings --pooling mean --reading together --read-titles --seed $seed"
  fi
  stage warmup && echo "warmup --from $out/begin --corpus $out/corpus --out $of/warmup --pairing recurring --pointing 1 --reader.steps $(scaled "${WARMUP:-2000}") --reader.batch $(scaled 256) --reader.lr 1e-4 --retriever.steps 0 $loop"
  if stage towers; then
    evaluate start "$of/warmup/model" --read 0
    echo "towers --from $of/warmup/model --corpus $out/corpus --questions $open --out $of/towers --scale-lr 5e-3 --optim.steps $(scaled "${TOWERS:-500}") --optim.batch $(scaled 256) --optim.lr 1e-5 $loop"
  fi
  if stage reading; then
    echo "finetune --from $of/towers/model --corpus $out/corpus --questions $open $given --out $of/reading --read 20 --read-gold --candidates 100 --closed-book 0.02 --passage-logit --title-answers --scale-lr 5e-3 --optim.steps $(scaled "${READING:-2250}") --optim.batch $(scaled 64) --optim.lr 5e-5 --optim.retriever-lr 0 $parts $loop"
    evaluate reading "$of/reading/model" --read 20
    echo "evaluate --model $of/reading/model --corpus $out/small --questions $data/small/small-dev.jsonl --read 5 --report $of/reports/reading-small.json --predictions $of/predictions/reading-small.jsonl"
  fi
  true
} | realmlm batch - --log "$out/seconds.jsonl"
