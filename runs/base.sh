#!/usr/bin/env bash
# The large reader: runs/small.sh from a larger sentence encoder (MPNet-base: 12 layers of 768), renumbered to the wordpieces of the small one, so that both
# share a corpus and the large one can teach the small one (TEACHER=FOLDER/base/plain-0/reading/model). Not shipped: it shows what a larger reader gives.
# After all questions together it learns each of the paper's sets by itself, as the paper does (base/nq …), and answers from the best 20 of 50 (base/nq-50 …, base/together-50).
#
#   python runs/renumber.py MPNET GTE-SMALL ENCODER
#   ENCODER=folder runs/base.sh FOLDER DATA                     and whatever runs/small.sh takes
#                                                               EACH=n: steps of each set by itself   EACH=0: none
# Choose on dev; then STAGES=tests runs/small.sh, with START, NAME, ONLY and RERANK of what was chosen, once.
#
# The encoder was supervised on pairs, questions of Natural Questions, SQuAD and TriviaQA among them (its card has the list): say so beside every number.
set -euo pipefail
small=$(dirname "$0")/small.sh out=$1 each=${EACH:-150}
export WARMUP=${WARMUP:-0} JOINT=${JOINT:-0} NAME=${NAME:-base} VECTOR=768 TOWERS_BATCH=256 TOWERS_LR=1e-5 READING_LR=${READING_LR:-5e-5} READING_BATCH=${READING_BATCH:-32}
"$small" "$@"
[ "$each" = 0 ] && exit
of=$out/$NAME read=$out/$NAME/plain-${SEED:-0}/reading/model
further() { START=$1 NAME=$NAME/$2 "$small" "${@:3}"; } # model, name
for set in nq triviaqa webquestions curatedtrec; do
  ls "$2/questions/$set"-train.* > /dev/null 2>&1 || continue
  export ONLY=$set
  STAGES=reading TOWERS=0 READING=$each READING_LR=2e-5 further "$read" "$set" "$@"
  own=$of/$set/plain-${SEED:-0}/reading/model
  STAGES=answers RERANK=50 further "$read" together-50 "$@"
  STAGES=answers RERANK=50 further "$own" "$set-50" "$@"
done
