#!/usr/bin/env bash
# The large reader: runs/small.sh from a larger sentence encoder (MPNet-base: 12 layers of 768), renumbered to the wordpieces of the small one, so that both
# share a corpus and the large one can teach the small one (TEACHER=FOLDER/base/plain-0/reading/model). Not shipped: it shows what a larger reader gives.
#
#   python runs/renumber.py MPNET GTE-SMALL ENCODER
#   ENCODER=folder runs/base.sh FOLDER DATA                     and whatever runs/small.sh takes
#
# The encoder was supervised on pairs, questions of Natural Questions, SQuAD and TriviaQA among them (its card has the list): say so beside every number.
export WARMUP=${WARMUP:-0} JOINT=${JOINT:-0} NAME=${NAME:-base} VECTOR=768 TOWERS_BATCH=256 TOWERS_LR=1e-5 READING_LR=5e-5 PARTS=${PARTS:-4}
exec "$(dirname "$0")/small.sh" "$@"
