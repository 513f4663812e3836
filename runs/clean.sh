#!/usr/bin/env bash
# The clean track at size: from scratch on the articles alone, all passages searched and learned from; no question is seen before `without` and `with`.
# One part per call, in this order; `recurring` can run beside `warmup`, and `plain`, `posterior`, `frozen`, `ict` and `without` beside `joint`. Run one again, with the same settings, and it continues where it stopped.
#
#   runs/clean.sh FOLDER DATA reading              the corpus, sentences held out, a fresh model whose reader learns to read
#   runs/clean.sh FOLDER DATA warmup|recurring     from there the towers learn to find: by ICT; or words that recur in another passage of the same article
#   runs/clean.sh FOLDER DATA joint                reader and towers together on 2 million sentences, with pointing; FINDING=recurring: after `recurring`, as all below
#   runs/clean.sh FOLDER DATA plain|posterior|frozen|ict   the paper's loss alone; pointing, but the retriever learns from the posterior (EMDR²); with the retriever held still; the towers go on alone
#   runs/clean.sh FOLDER DATA words                hybrid search with the joint model, or where there is none with the warmed-up one, and word matching alone
#   runs/clean.sh FOLDER DATA without|with|frozen-too   all of fine-tuning on questions, three seeds: after the warm-up (ORQA), after `joint` (REALM), after `frozen`; RECIPE as for runs/joint.sh
#   runs/clean.sh FOLDER DATA compare              what was found before any question was seen, and answered after all of them
#
# DATA as for runs/small.sh (runs/questions.py makes DATA/unseen).
# WORDS=384: towers without layers, vectors of so many numbers for each wordpiece, which learn to find on a CPU too (docs/decisions/022); READER=0: towers alone
# READER, FIND, JOINT, TOWERS, READING=n: steps   K=n   GLIMPSES, TITLED=share: of `recurring`   IN_BATCH=weight, RECURRING=1, SEARCH_WITH=index, IN_LINE=1: of joint training   COMPILE=1 on a GPU   SCALE=0.01: a rehearsal   SEED=n: in a FOLDER of its own
set -euo pipefail
out=$1 data=$2 part=$3 here=$(dirname "$0") scale=${SCALE:-1} seed=${SEED:-0}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
loop="--loop.seed $seed --loop.log-every $(scaled 100) --loop.checkpoint-every $(scaled 5000) ${COMPILE:+--loop.compile}"
held=$out/held-out.jsonl warm=$out/${FINDING:-warmup}/model read=$out/reading/model
[ "${READER:-}" = 0 ] && read=$out/begin
# vectors of words begin anew and learn fast; an encoder begins as the reader
begin=--towers-as-reader find_lr=5e-4 on_lr=1e-4 scale_lr=1e-3
[ -n "${WORDS:-}" ] && begin="" find_lr=3e-3 on_lr=1e-3 scale_lr=1e-2 RETRIEVER_LR=${RETRIEVER_LR:-1e-3}
export ENCODER=$out/corpus START=$warm K=${K:-4} JOINT_LR=${JOINT_LR:-2e-4} RETRIEVER_LR=${RETRIEVER_LR:-1e-4} SCALE_LR=${SCALE_LR:-1e-3} SEARCH_WITH=${SEARCH_WITH:-current} REFRESH=${REFRESH:-400}
export JOINT=${JOINT:-15700} GUARD=0 FREEZE=$(scaled 100) HOLD_OUT=$held CHECKPOINT=${CHECKPOINT:-5000}
# all that fine-tuning has, from a model that has seen no question; its retriever alone searches, as ORQA's and REALM's do
export HYBRID=${HYBRID:-0} TOWERS=${TOWERS:-500} TOWERS_LR=${TOWERS_LR:-1e-4} READING=${READING:-1200} READING_BATCH=${READING_BATCH:-64} READING_LR=${READING_LR:-2e-4} QUERY_LR=${QUERY_LR:-5e-5}
ls "$data"/unseen/* > /dev/null # made by runs/questions.py
evaluate() { # arm, name, model, questions, flags
  echo "evaluate --model $3 --corpus $out/corpus --questions $4 --report $out/reports/$1/$2.json --predictions $out/predictions/$1/$2.jsonl ${*:5}"
}
found() { # arm, model, flags: questions that nothing has seen
  for file in "$data"/unseen/*; do evaluate "$1" "unseen-$(basename "${file%.*}")" "$2" "$file" --read 0 "${@:3}"; done
}
measure() { # arm, model
  evaluate "$1" sentences "$2" "$held" --read $((K - 1))
  found "$1" "$2" --hybrid 0
}
run() { realmlm batch - --log "$out/seconds.jsonl"; }
joint() { # name: an arm of joint training, by runs/small.sh
  NAME=$1 STAGES=joint "$here/small.sh" "$out" "$data"
  measure "$1" "$out/$1/joint/model" | run
}
find_alone() { # name, from, objective, rate, seed, flags: the towers alone
  {
    echo "warmup --from $2 --corpus $out/corpus --out $out/$1 --hold-out $held --retriever-objective $3 --scale-lr $scale_lr --reader.steps 0 --retriever.steps $(scaled "${FIND:-1500}") --retriever.batch $(scaled 2048) --retriever.lr $4 ${loop/--loop.seed $seed/--loop.seed $5} ${*:6}"
    measure "$1" "$out/$1/model"
  } | run
}
mkdir -p "$out"
case $part in
reading)
  {
    echo "corpus $data/articles --out $out/corpus --train-tokenizer 16000 --max-wordpieces 128"
    [ -d "$out/corpus/spans" ] || echo "spans $out/corpus"
    echo "clozes $out/corpus --out $held --count $(scaled 2000)"
    echo "model --corpus $out/corpus --out $out/begin --layers 6 --hidden 384 --heads 6 --dropout 0.1 --projection ${WORDS:-128} ${WORDS:+--towers words }--pooling mean --reading together --read-titles --seed $seed"
    [ "${READER:-}" = 0 ] || echo "warmup --from $out/begin --corpus $out/corpus --out $out/reading --hold-out $held --pairing recurring --pointing 1 --reader.steps $(scaled "${READER:-8000}") --reader.batch $(scaled 256) --reader.lr 1e-3 --retriever.steps 0 $loop"
  } | run
  ;;
warmup) find_alone warmup "$read" ict $find_lr "$seed" $begin ;;
recurring) find_alone recurring "$read" recurring $find_lr "$seed" $begin --glimpses "${GLIMPSES:-0}" --titled "${TITLED:-0}" ;;
joint) joint with ;; # where runs/joint.sh looks for it
plain) POINTING=0 joint plain ;;
posterior) TARGET=posterior joint posterior ;;
frozen) REFRESH=0 RETRIEVER_LR=0 SCALE_LR=0 joint frozen ;;
ict) find_alone ict "$warm" "$([ "${FINDING:-}" = recurring ] && echo recurring || echo ict)" $on_lr "1$seed" ;;
words)
  joined=$out/with/joint/model
  [ -d "$joined" ] || joined=$warm
  {
    echo "hybrid --model $joined --corpus $out/corpus --questions $(ls "$data"/questions/*-dev.* | tr '\n' ' ')--limit $(scaled 700) --out $out/hybrid --report $out/reports/weights.json"
    found hybrid "$out/hybrid"
    found bm25 "$out/hybrid" --retriever bm25
  } | run
  ;;
without | with | frozen-too)
  STAGES=few "$here/small.sh" "$out" "$data"
  "$here/joint.sh" "$out" "$data" "${part%-too}"
  ;;
compare)
  for other in warmup recurring ict plain posterior frozen; do
    [ -d "$out/predictions/$other" ] || continue
    echo "== joint, with pointing, and $other"
    python "$here/paired.py" "$out/predictions/with" "$out/predictions/$other" unseen
    python "$here/paired.py" "$out/predictions/with" "$out/predictions/$other" sentences
  done
  if [ -d "$out/predictions/hybrid" ]; then
    echo "== hybrid search and word matching alone"
    python "$here/paired.py" "$out/predictions/hybrid" "$out/predictions/bm25" unseen
  fi
  "$here/joint.sh" "$out" "$data" compare
  ;;
*) echo "no part $part; the parts are named in $0" >&2 && exit 2 ;;
esac
