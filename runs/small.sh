#!/usr/bin/env bash
# The bundled model, from a published sentence encoder (gte-small: 12 layers of 384) to answers: the reader learns to read without labels, reader and
# towers learn together (the joint stage), the towers learn from question and passage, and the reader learns to answer: over 20 passages, given
# paragraphs among them, with a passage logit and answers in titles. Then the weight of word matching is fitted. Run it again and it continues where it stopped.
#
#   python runs/questions.py RAW DATA                           the questions (DATA/questions, DATA/small)
#   ENCODER=folder runs/small.sh FOLDER DATA                    DATA/articles: JSON lines; COMPILE=1 on a GPU; SCALE=0.01: a rehearsal
#                                                               JOINT=0: without the joint stage   SEED=n: other batches   STAGES="…": some of them
#                                                               WARMUP, JOINT, TOWERS, READING=n: steps of each; mini is JOINT=0 WARMUP=1500 TOWERS=350 READING=1700
#                                                               TEACHER=model: a larger reader (runs/base.sh) teaches this one
#
# The encoder was supervised on question pairs, Natural Questions among them: say so beside every number.
set -euo pipefail
out=$1 data=$2 scale=${SCALE:-1} seed=${SEED:-0} joint=${JOINT:-16000}
stages=${STAGES:-corpus warmup joint towers reading hybrid}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
mkdir -p "$out"
loop="--loop.seed $seed --loop.log-every $(scaled 50) --loop.checkpoint-every $(scaled 1000) ${COMPILE:+--loop.compile}"
open=$(ls "$data"/questions/*-train.* | tr '\n' ' ')
given=$(ls "$data"/questions/*-reading.* | tr '\n' ' ')
dev=$(ls "$data"/questions/*-dev.* | tr '\n' ' ')
# with joint pre-training and without it, the same stages in folders of their own
before=$([ "$joint" = 0 ] && echo "$out/warmup/model" || echo "$out/joint/model")
of=$([ "$joint" = 0 ] && echo "$out/plain-$seed" || echo "$out/realm-$seed")
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
    echo "model --corpus $out/corpus --out $out/begin --checkpoint $ENCODER --projection 384 --freeze-embeddings --pooling mean --reading together --read-titles --seed $seed"
  fi
  stage warmup && echo "warmup --from $out/begin --corpus $out/corpus --out $out/warmup --pairing recurring --pointing 1 --reader.steps $(scaled "${WARMUP:-4000}") --reader.batch $(scaled 256) --reader.lr 3e-4 --retriever.steps 0 $loop"
  stage joint && [ "$joint" != 0 ] && echo "pretrain --from $out/warmup/model --corpus $out/corpus --out $out/joint --pointing 1 --guard $dev --scale-lr 5e-3 --freeze-retriever $(scaled 100) --optim.steps $(scaled "$joint") --optim.batch $(scaled 128) --optim.lr 1e-4 --optim.retriever-lr 1e-5 --refresh.every-steps $(scaled 500) $loop"
  if stage towers; then
    evaluate start "$before" --read 0
    echo "towers --from $before --corpus $out/corpus --questions $open --out $of/towers --scale-lr 5e-3 --optim.steps $(scaled "${TOWERS:-500}") --optim.batch $(scaled 512) --optim.lr 2e-5 $loop"
  fi
  if stage reading; then
    echo "finetune --from $of/towers/model --corpus $out/corpus --questions $open $given --out $of/reading --read 20 --read-gold --candidates 100 --closed-book 0.02 --passage-logit --title-answers --scale-lr 5e-3 --optim.steps $(scaled "${READING:-2250}") --optim.batch $(scaled 64) --optim.lr 1e-4 --optim.retriever-lr 0 ${TEACHER:+--teacher $TEACHER} $loop"
    evaluate reading "$of/reading/model" --read 20
    echo "evaluate --model $of/reading/model --corpus $out/small --questions $data/small/small-dev.jsonl --read 5 --report $of/reports/reading-small.json --predictions $of/predictions/reading-small.jsonl"
  fi
  if stage hybrid; then
    echo "hybrid --model $of/reading/model --corpus $out/corpus --questions $dev --limit $(scaled 700) --out $of/hybrid --report $of/reports/weights.json"
    evaluate hybrid "$of/hybrid" --read 20
  fi
  true
} | realmlm batch - --log "$out/seconds.jsonl"
