#!/usr/bin/env bash
# Tables 1 and 2 in miniature on real text, one arm and seed per call, so that a GPU can run several at once; runs/text_table.py combines them.
# Every arm starts from the corpus, the held-out sentences and the warm-up made by `runs/mini.sh clean FOLDER DATA`; sentences to learn from
# come from FOLDER/text if there is one, else from the corpus itself. runs/text_tables.sh calls it for every row of docs/study.md.
#
#   runs/text_study.sh FOLDER DATA ARM [SEED]        QUESTIONS=1: also fine-tune on questions    TEST=1: measure on the test files as well
#                                                    COMPILE=1: fused layers (a GPU)             STEPS=n, SCALE=0.01: shorter
#
# Arms: warmup (the baseline, as ORQA) realm realm-longer (2,000 joint steps, not 800) plain frozen ict ict-longer uniform random-span stale no-null recurring glimpses tagger news
#       same-text own-passage (both learn from the corpus itself, X = Z; the second may retrieve a sentence's own passage)
#       realm-retriever realm-reader (of realm with the same seed, the other half from the warm-up)
#       bm25 hard-em (of the warm-up, questions only)
#       warmup-projection realm-projection realm-longer-projection (only the query's projection learns questions)
#       warmup-as-is realm-as-is realm-longer-as-is realm-retriever-as-is (only the reader learns them; the last with the warm-up's reader)
#       own-NAME (realm with the flags of EXTRA="--flag value …": a comparison of your own)
# `news` needs DATA/news (JSON lines of another text X); `tagger` needs TAGGER=folder of one made by `realmlm tagger`.
set -euo pipefail
base=$1 data=$2 arm=$3 seed=${4:-0} scale=${SCALE:-1}
out=$base/study/$arm-$seed corpus=$base/corpus warm=$base/warmup/model
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
steps=$(scaled "${STEPS:-800}")
loop="--loop.seed $seed --loop.log-every $(scaled 50) --loop.checkpoint-every $(scaled 1000)"
fused=${COMPILE:+--loop.compile}
held="--hold-out $base/held-out.jsonl"
pointing="--pointing 1"
text=$([ ! -d "$base/text" ] || echo "$base/text") # another text X, where there is one
often="--refresh.every-steps $(scaled 100) --freeze-retriever $(scaled 50)"
sets() { ls "$data"/questions/*-"$1".*; }
name_of() { basename "$1" | sed "s/-[a-z]*\..*//"; }
evaluate() { # name, model, questions, flags
  echo "evaluate --model $2 --corpus $corpus --questions $3 ${*:4} --report $out/reports/$1.json --predictions $out/predictions/$1.jsonl"
}
joint() { # flags of pretrain
  echo "pretrain --from $warm --corpus $corpus --out $out/joint $held --optim.steps $steps --optim.batch $(scaled 128) --optim.lr 2e-4 --optim.retriever-lr 1e-4 $loop $fused ${text:+--text $text} $*"
}
found() { # model, retriever: questions before any was seen
  for file in $(sets train); do
    evaluate "zero-shot-$(name_of "$file")" "$1" "$file" --read 0 --retriever "$2"
  done
}
measure() { # model: held-out sentences and questions before any was seen, also with a [MASK] after them
  evaluate held-out "$1" "$base/held-out.jsonl" --read "$([ "$arm" = no-null ] && echo 8 || echo 7)"
  found "$1" learned
  for file in $(sets train); do
    evaluate "with-mask-$(name_of "$file")" "$1" "$file" --read 0 --with-mask
  done
}
questions() { # model, retriever, flags of finetune
  local tuned=$out/questions/model
  echo "finetune --from $1 --corpus $corpus --questions $(sets train | tr '\n' ' ') --out $out/questions --retriever $2 --read 8 --read-gold --candidates 100 --closed-book 0.02 --optim.steps $(scaled 600) --optim.batch $(scaled 64) --optim.lr 2e-4 --optim.retriever-lr ${rate:-2e-5} $loop ${*:3}"
  for file in $(sets dev) $([ -z "${TEST:-}" ] || sets test); do
    evaluate "$(basename "${file%.*}")" "$tuned" "$file" --read 10 --retriever "$2"
    [[ $arm != @(warmup|realm) ]] || evaluate "closed-book-$(basename "${file%.*}")" "$tuned" "$file" --read 10 --retriever none
  done
}
commands() {
  model=$out/joint/model
  case $arm in
  warmup | bm25 | hard-em | warmup-projection | warmup-as-is) model=$warm ;;
  realm-projection | realm-longer-projection) model=$base/study/${arm%-projection}-$seed/joint/model ;;
  realm-as-is | realm-longer-as-is) model=$base/study/${arm%-as-is}-$seed/joint/model ;;
  realm-retriever | realm-retriever-as-is | realm-reader)
    model=$out/model taught=$base/study/realm-$seed/joint/model
    [ "$arm" = realm-reader ] && echo "graft --towers $warm --reader $taught --out $model" || echo "graft --towers $taught --reader $warm --out $model"
    ;;
  realm) joint $pointing $often ;;
  realm-longer)
    steps=$(scaled 2000)
    joint $pointing $often
    ;;
  own-*) joint $pointing $often ${EXTRA:?EXTRA holds the flags of pretrain that make this arm your own} ;;
  plain) joint $often ;;
  frozen) joint $pointing --refresh.every-steps 0 --freeze-retriever "$steps" ;;
  uniform | random-span) joint $often --masking "$arm" ;; # there is no one run of words to point at: to be compared with `plain`
  stale) joint $pointing --refresh.every-steps 0 --freeze-retriever "$(scaled 50)" ;;
  no-null) joint $pointing $often --no-null-document ;;
  same-text | own-passage)
    text=
    joint $pointing $often $([ "$arm" = same-text ] || echo --own-passage)
    ;;
  recurring) joint $pointing $often --recurring ;;
  glimpses) joint $pointing $often --glimpses 0.5 ;;
  news)
    echo "corpus $data/news --out $base/news --tokenizer $warm --max-wordpieces 128"
    [ -d "$base/news/spans" ] || echo "spans $base/news"
    text=$base/news
    joint $pointing $often
    ;;
  tagger) # the same text, marked otherwise
    if [ ! -d "$base/tagged/spans" ]; then
      [ -d "$base/tagged" ] || { mkdir "$base/tagged" && find "${text:-$corpus}" -maxdepth 1 -type f -exec cp {} "$base/tagged" \;; }
      echo "spans $base/tagged --tagger learned --learned $TAGGER"
    fi
    text=$base/tagged
    joint $pointing $often
    ;;
  ict | ict-longer)
    model=$out/ict/model length="$(scaled 600) --retriever.lr 3e-4"
    [ "$arm" = ict ] || length="$(scaled 1200) --retriever.lr 1e-4" # as many minutes as a joint run takes, at its rate
    [ -z "$text" ] || corpus=$base/text held= # passages of another text: none of them is held out
    echo "warmup --from $warm --corpus $corpus --out $out/ict $held --reader.steps 0 --retriever.steps $length --retriever.batch $(scaled 2048) ${loop/--loop.seed $seed/--loop.seed 1$seed} $fused"
    corpus=$base/corpus
    ;;
  *)
    echo "no arm '$arm'; the first lines of $0 list them" >&2
    exit 2
    ;;
  esac
  case $arm in bm25 | hard-em | *-projection | *-as-is) ;; *) measure "$model" ;; esac
  case $arm in
  *-projection) questions "$model" learned --query projection ;;
  *-as-is) rate=0 questions "$model" learned ;;
  bm25)
    found "$model" bm25
    questions "$model" bm25
    ;;
  hard-em) questions "$model" learned --objective hard-em ;;
  *) [ -z "${QUESTIONS:-}" ] || questions "$model" learned ;;
  esac
}
all=$(commands)
mkdir -p "$out" && echo "$all" > "$out/commands.txt"
realmlm batch "$out/commands.txt" --log "$out/seconds.jsonl"
