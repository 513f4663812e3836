#!/usr/bin/env bash
# What joint pre-training is worth to a model that answers already: the same training on questions with it and without it, three seeds of reading, paired.
# One part per call; `joint` and `without` can run beside each other, `with` comes after `joint`. Run one again and it continues where it stopped.
#
#   runs/joint.sh FOLDER DATA without|joint|with|frozen   FOLDER and DATA as for runs/small.sh, the corpus made (STAGES=corpus); START=model (mini)
#                                                         JOINT, TOWERS, READING=n: steps; whatever else runs/small.sh takes but SEED
#                                                         RECIPE=as-is: only the reader learns from questions; RECIPE=query: the query tower with it, over the index as it is (the paper's)
#   runs/joint.sh FOLDER DATA retriever                   the retriever of `with` beside START's own reader, which had no part in joint training
#   runs/joint.sh FOLDER DATA average                     the mean of the weights of the three that have read, and its scores; OF=without: of those
#   runs/joint.sh FOLDER DATA compare                     what it was worth: found before training on questions, answered after it
set -euo pipefail
out=$1 data=$2 part=$3 here=$(dirname "$0")
unset SEED
export START=${START:-mini} WARMUP=0 K=${K:-3} JOINT_LR=${JOINT_LR:-5e-5} RETRIEVER_LR=${RETRIEVER_LR:-3e-6} SCALE_LR=${SCALE_LR:-1e-3} SEARCH_WITH=${SEARCH_WITH:-index} REFRESH=${REFRESH:-2000}
# the rates rise for a tenth of the steps: the retriever hardly moves before the reader has found back
export FREEZE=${FREEZE:-0} CHECKPOINT=${CHECKPOINT:-5000} READING_BATCH=${READING_BATCH:-32} LIMIT=${LIMIT:-300}
# joint training halves the scale of f(x,z), so that λ · BM25 would weigh more after it: the towers learn it anew, at a rate that reaches so far, and λ is fitted to both
export TOWERS_SCALE_LR=${TOWERS_SCALE_LR:-2e-2}
joint=${JOINT:-15700} towers=${TOWERS:-150} reading=${READING:-600} recipe=${RECIPE:-towers}
case $recipe in
towers) export QUERY_LR=0 && learned="" ;;
as-is) export QUERY_LR=0 && learned=-as-is towers=0 ;;
query) export QUERY_LR=${QUERY_LR:-1e-5} && learned=-query towers=0 ;;
*) echo "no recipe $recipe: towers, as-is or query" >&2 && exit 2 ;;
esac
all_of() { # processes: wait for each of them, then fail if one did
  local failed=0
  for job in "$@"; do wait "$job" || failed=1; done
  return $failed
}
found() { # arm, model: what reading begins with; where λ is given, it is not fitted
  if [ "$towers" = 0 ]; then echo "$2"; elif [ -z "${HYBRID:-}" ]; then echo "$out/$1/plain-0/hybrid"; else echo "$out/$1/plain-0/towers/model"; fi
}
thrice() { # name, model: reading
  local jobs=()
  for seed in 0 1 2; do
    START=$2 JOINT=0 NAME=$1 STAGES=reading TOWERS=0 READING=$reading SEED=$seed "$here/small.sh" "$out" "$data" &
    jobs+=($!)
  done
  all_of "${jobs[@]}"
}
arm() { # name, model: towers from questions and word matching beside them once, then reading three times
  local name=$1$learned jobs=()
  if [ "$towers" != 0 ]; then
    START=$2 JOINT=0 NAME=$name STAGES=start "$here/small.sh" "$out" "$data" &
    jobs+=($!)
    START=$2 JOINT=0 NAME=$name STAGES="towers hybrid" TOWERS=$towers "$here/small.sh" "$out" "$data"
  fi
  thrice "$name" "$(found "$name" "$2")" &
  all_of "${jobs[@]}" $!
}
predictions() { echo "$out/$1/plain-0/predictions,$out/$1/plain-1/predictions,$out/$1/plain-2/predictions"; }
compare() { # what, predictions with, predictions without, prefix
  ls "${2%%,*}/$4"* > /dev/null 2>&1 || return 0
  echo "== $1"
  python "$here/paired.py" "$2" "$3" "$4"
}
case $part in
without) arm without "$START" ;;
joint) JOINT=$joint NAME=with STAGES=joint "$here/small.sh" "$out" "$data" ;;
with) arm with "$out/with/joint/model" ;;
retriever)
  name=retriever$learned
  [ -e "$out/$name/begin" ] || python "$here/splice.py" "$out/$name/begin" "$(found "with$learned" "$out/with/joint/model")" "$START"
  thrice "$name" "$out/$name/begin"
  ;;
frozen) arm frozen "$out/frozen/joint/model" ;; # the reader learned as long, the retriever did not (runs/clean.sh)
average)
  of=${OF:-with}
  [ -e "$out/$of/average" ] || python "$here/average.py" "$out/$of/average" "$out/$of"/plain-{0,1,2}/reading/model
  START=$out/$of/average JOINT=0 NAME=$of/mean STAGES=answers "$here/small.sh" "$out" "$data"
  ;;
compare)
  for set in nq triviaqa webquestions curatedtrec squad entities; do
    [ "$recipe" != towers ] || compare "$set, before training on questions" "$out/with/plain-0/predictions" "$out/without/plain-0/predictions" "start-$set"
  done
  for other in with retriever; do
    other=$other$learned
    [ -d "$out/$other/plain-2/predictions" ] || continue
    for set in nq triviaqa webquestions curatedtrec squad entities small tables everyday papers ""; do
      compare "$other and without: ${set:-all}, after reading, mean of three seeds" "$(predictions "$other")" "$(predictions "without$learned")" "reading-$set"
    done
  done
  ;;
*) echo "no part $part; the parts are named in $0" >&2 && exit 2 ;;
esac
