#!/usr/bin/env bash
# What teaches the reader to choose between passages: arms of fine-tuning, one arm and seed per call, measured on dev. All start from one model (mini) whose
# towers stay as they are: every arm reads the same passages, so that what differs is reading. Run it again and it continues where it stopped.
#
#   runs/reading_arms.sh FOLDER DATA ARM [SEED]       COMPILE=1: fused layers, recorded steps (a GPU)   STEPS=n, SCALE=0.01: shorter   MODEL=folder
#   runs/reading_arms.sh FOLDER DATA compare [SEED]   every arm that was made beside `read-20`, paired (runs/paired.py)
#
# Arms: read-8 (8 passages in training, 20 in use) read-20 (20 in both) open (read-20 without questions that come with their paragraph)
#       logit (read-20 and a passage logit) marginal (the same, learned in the marginal alone) within (the same, spans weighed within their passage)
#       titles (read-20, words of titles can be answers) all (logit and titles)   own-NAME (read-20 with the flags of EXTRA="--flag value …")
#
# DATA holds articles/ (JSON lines), questions/*-train.* (open), questions/*-reading.* (with their paragraph) and questions/*-dev.*, in any accepted format.
# 20 passages for 64 questions take some 20 GiB of GPU memory in bfloat16 (6 layers of 384; counted on a CPU in float32, halved); PARTS=4 does it in a quarter of that, but steps are then not recorded.
set -euo pipefail
base=$1 data=$2 arm=$3 seed=${4:-0} scale=${SCALE:-1} model=${MODEL:-mini}
out=$base/reading/$arm-$seed corpus=$base/corpus
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
name_of() { basename "$1" | sed "s/-[a-z]*\..*//"; }

if [ "$arm" = compare ]; then
  for way in "$base"/reading/*-"$seed"/predictions/*; do
    for file in "$data"/questions/*-dev.*; do
      echo "== ${way#"$base"/reading/} beside read-20-$seed/predictions/read-20"
      python "$(dirname "$0")/paired.py" "$way" "$base/reading/read-20-$seed/predictions/read-20" "$(name_of "$file")"
    done
  done
  exit
fi

read=20 paragraphs=1
case $arm in
read-8) flags="" read=8 ;;
read-20) flags="" ;;
open) flags="" paragraphs= ;;
logit) flags="--passage-logit" ;;
marginal) flags="--passage-logit --judging 0" ;;
within) flags="--passage-logit --reading paper" ;;
titles) flags="--title-answers" ;;
all) flags="--passage-logit --title-answers" ;;
own-*) flags=$EXTRA ;;
*) echo "no arm $arm; the arms are named in $0" >&2 && exit 2 ;;
esac
questions=$(ls "$data"/questions/*-train.* ${paragraphs:+"$data"/questions/*-reading.*} | tr '\n' ' ')
tuned=$out/questions/model
evaluate() { # way of reading, its flags
  for file in "$data"/questions/*-dev.*; do
    named=$1/$(name_of "$file")
    echo "evaluate --model $tuned --corpus $corpus --questions $file ${*:2} --report $out/reports/$named.json --predictions $out/predictions/$named.jsonl"
  done
}
{
  [ -d "$corpus" ] || echo "corpus $data/articles --out $corpus --tokenizer $model --max-wordpieces 128"
  echo "finetune --from $model --corpus $corpus --questions $questions --out $out/questions --read $read --read-gold --candidates 100 --closed-book 0.02 --optim.steps $(scaled "${STEPS:-1000}") --optim.batch $(scaled 64) --optim.accumulate ${PARTS:-1} --optim.lr 1e-4 --optim.retriever-lr 0 --loop.seed $seed --loop.log-every $(scaled 50) ${COMPILE:+--loop.compile} $flags"
  evaluate read-20 --read 20
  evaluate best-5-of-20 --read 5 --rerank 20
  evaluate best-20-of-50 --read 20 --rerank 50
} | realmlm batch - --log "$base/seconds.jsonl"
