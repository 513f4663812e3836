#!/usr/bin/env bash
# The bundled model, from a published sentence encoder (gte-small: 12 layers of 384) to answers: the reader learns to read without labels, reader and
# towers learn together (the joint stage), the towers learn from question and passage, the weight of word matching is fitted, and the reader learns to answer
# from what both find: over 20 passages, given paragraphs among them, with a passage logit and answers in titles; then once more with a larger reader as its
# teacher, if there is one. Run it again and it continues where it stopped.
#
#   python runs/questions.py RAW DATA                           the questions (DATA/questions, DATA/small)
#   python runs/tables.py WIKITABLEQUESTIONS DATA               and those about rows of tables,
#   python runs/everyday.py DATA                                and about letters, lists and forms,
#   python runs/papers.py DATA                                  and about papers as people have them, if wanted
#   ENCODER=folder runs/small.sh FOLDER DATA                    DATA/articles: JSON lines; COMPILE=1 on a GPU; SCALE=0.01: a rehearsal
#                                                               STAGES="…": some of them, `few`: the corpora of few documents alone, or `answers`: those of START (with JOINT=0)   SEED=n: other batches   NAME=folder: of all but the corpus
#                                                               WARMUP, JOINT, TOWERS, READING, TAUGHT=n: steps of each; WARMUP=0, JOINT=0, TOWERS=0: without it
#                                                               START=model: goes on from one that has learned already, in place of the warm-up (JOINT=0: of the joint stage too)
#                                                               TEACHER=model: the larger reader (runs/base.sh)
#                                                               HYBRID=λ: reading, `answers` and `tests` with this weight of word matching, which is not fitted then
#                                                               READ=n: passages of a question in training, RIVALS=n: of them paragraphs of other questions, where it came with its own
#                                                               QUERY_LR=rate: the query tower learns beside the reader, over the index as it is
#                                                               STAGES=tests: START on DATA/questions/*-test.*, once, at the end   ONLY=nq: one set of questions alone   RERANK=n: answers from the best 20 of n
#
# The encoder was supervised on question pairs, Natural Questions among them: say so beside every number.
set -euo pipefail
out=$1 data=$2 scale=${SCALE:-1} seed=${SEED:-0} warmup=${WARMUP:-4000} joint=${JOINT:-16000}
stages=${STAGES:-corpus model warmup joint start towers hybrid reading taught}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
loop="--loop.seed $seed --loop.log-every $(scaled 50) --loop.checkpoint-every $(scaled "${CHECKPOINT:-1000}") ${COMPILE:+--loop.compile}"
sets() { find "$data/questions" -name "${ONLY:-*}-$1.*" | sort | tr '\n' ' '; } # train, reading, dev or test
few=small # answering from few documents
for name in tables everyday papers; do [ ! -e "$data/small/$name-dev.jsonl" ] || few="$few $name"; done
[ -z "${ONLY:-}" ] || few=""
how="${HYBRID:+--hybrid $HYBRID}"
own=$out${NAME:+/$NAME}
# with joint pre-training and without it, the same stages in folders of their own
read=$own/warmup/model before=$own/joint/model of=$own/realm-$seed
[ "$warmup" = 0 ] && read=$own/begin
read=${START:-$read}
[ "$joint" = 0 ] && before=$read of=$own/plain-$seed
found=$of/hybrid # what reading begins with
[ -n "${HYBRID:-}" ] && found=$of/towers/model
[ "${TOWERS:-}" = 0 ] && found=$before
mkdir -p "$own"
documents() { # of a name of few
  case $1 in
    small) echo "$data/small/paragraphs.jsonl" ;;
    papers) echo "$(dirname "$0")/papers/choose/mixed/docs" ;;
    *) echo "$data/small/$1.jsonl" ;;
  esac
}
evaluate() { # name, model, dev or test, flags
  local file name
  for file in $(sets "$3"); do
    name=$1-$(basename "${file%-*}")
    echo "evaluate --model $2 --corpus $out/corpus --questions $file --report $of/reports/$name.json --predictions $of/predictions/$name.jsonl ${*:4}"
  done
}
answered() { # name, model
  evaluate "$1" "$2" dev --read 20 ${RERANK:+--rerank $RERANK} $how
  for name in $few; do
    echo "evaluate --model $2 --corpus $out/$name --questions $data/small/$name-dev.jsonl --read 5 --report $of/reports/$1-$name.json --predictions $of/predictions/$1-$name.jsonl $how"
  done
}
answer() { # name, the model to begin with, steps, flags
  echo "finetune --from $2 --corpus $out/corpus --questions $(sets train)$(sets reading)--out $of/$1 --read ${READ:-20} --read-gold --candidates 100 --closed-book 0.02 --passage-logit --title-answers --max-answer 20 --rivals ${RIVALS:-9} $how --optim.steps $(scaled "$3") --optim.batch $(scaled "${READING_BATCH:-64}") --optim.accumulate ${PARTS:-1} --optim.lr ${READING_LR:-1e-4} --optim.retriever-lr ${QUERY_LR:-0} ${*:4} $loop"
  answered "$1" "$of/$1/model"
}
stage() { [[ " $stages " == *" $1 "* ]]; }
{
  if stage corpus; then
    echo "corpus $data/articles --out $out/corpus --tokenizer $ENCODER --max-wordpieces 128"
    [ -d "$out/corpus/spans" ] || echo "spans $out/corpus"
  fi
  if stage corpus || stage few; then
    for name in $few; do
      echo "corpus $(documents "$name") --out $out/$name --tokenizer $ENCODER --max-wordpieces 128"
    done
  fi
  stage model && echo "model --corpus $out/corpus --out $own/begin --checkpoint $ENCODER --projection ${VECTOR:-384} --freeze-embeddings --pooling mean --reading together --read-titles --seed $seed"
  if stage warmup && [ "$warmup" != 0 ]; then
    echo "warmup --from $own/begin --corpus $out/corpus --out $own/warmup --pairing recurring --pointing 1 --reader.steps $(scaled "$warmup") --reader.batch $(scaled 256) --reader.lr 3e-4 --retriever.steps 0 $loop"
  fi
  if stage joint && [ "$joint" != 0 ]; then
    echo "pretrain --from $read --corpus $out/corpus --out $own/joint --pointing ${POINTING:-1} --in-batch ${IN_BATCH:-0} ${RECURRING:+--recurring }--retriever-target ${TARGET:-marginal} --k ${K:-8} --search-with ${SEARCH_WITH:-current} $([ "${GUARD:-1}" = 0 ] || echo "--guard $(sets dev)") ${HOLD_OUT:+--hold-out $HOLD_OUT} --scale-lr ${SCALE_LR:-5e-3} --freeze-retriever ${FREEZE:-$(scaled 100)} --optim.steps $(scaled "$joint") --optim.batch $(scaled "${JOINT_BATCH:-128}") --optim.lr ${JOINT_LR:-1e-4} --optim.retriever-lr ${RETRIEVER_LR:-1e-5} --refresh.every-steps $([ "${REFRESH:-}" = 0 ] && echo 0 || scaled "${REFRESH:-500}") ${IN_LINE:+--refresh.no-process }$loop"
  fi
  stage start && evaluate start "$before" dev --read 0 --hybrid 0
  stage answers && answered answers "$before"
  stage tests && evaluate tests "$before" test --read 20 ${RERANK:+--rerank $RERANK} $how
  stage towers && [ "${TOWERS:-}" != 0 ] && echo "towers --from $before --corpus $out/corpus --questions $(sets train)--out $of/towers --scale-lr ${TOWERS_SCALE_LR:-5e-3} --optim.steps $(scaled "${TOWERS:-500}") --optim.batch $(scaled "${TOWERS_BATCH:-512}") --optim.lr ${TOWERS_LR:-2e-5} $loop"
  stage hybrid && [ "${TOWERS:-}" != 0 ] && [ -z "${HYBRID:-}" ] && echo "hybrid --model $of/towers/model --corpus $out/corpus --questions $(sets dev)--limit $(scaled "${LIMIT:-700}") --out $of/hybrid --report $of/reports/weights.json"
  stage reading && answer reading "$found" "${READING:-2250}"
  stage taught && [ -n "${TEACHER:-}" ] && answer taught "$of/reading/model" "${TAUGHT:-2250}" --teacher "$TEACHER"
  true
} | realmlm batch - --log "$own/seconds.jsonl"
