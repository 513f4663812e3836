#!/usr/bin/env bash
# The study's recipe on real text, from raw articles to answers; sized for minutes on one large GPU. Every line is a command that resumes:
# run it again and it continues where it stopped.
#
#   runs/mini.sh clean FOLDER DATA      from scratch on the articles alone: nothing has seen a question
#   runs/mini.sh warm FOLDER DATA       towers and reader start from a published sentence encoder, ENCODER=folder (its tokenizer beside it)
#
# DATA holds articles/ (JSON lines, Wikipedia) and questions/{nq,triviaqa,webquestions,curatedtrec}-{train,dev}.* in any accepted format.
# SCALE=0.01 makes a rehearsal of it (a hundredth of the steps and batch sizes).
set -euo pipefail
track=$1 out=$2 data=$3 scale=${SCALE:-1} seed=${SEED:-0}
export TOKENIZERS_PARALLELISM=false
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print v < 2 ? 2 : v }'; }
mkdir -p "$out"
loop="--loop.seed $seed --loop.log-every $(scaled 100) --loop.checkpoint-every $(scaled 1000)"
held="--hold-out $out/held-out.jsonl"
train=$(ls "$data"/questions/*-train.* | tr '\n' ' ')

# Every stage by track: what is searched and learned from, the model to start from, the warm-up (masked LM, ICT), joint pre-training.
case $track in
clean)
  searched="--train-tokenizer 16000 --max-passages 5" # the first passages of each article; what follows them is learned from
  shape="--layers 6 --hidden 384 --heads 6 --projection 128"
  joint="--text $out/text --pointing 1 --optim.steps $(scaled 800) --optim.lr 2e-4 --optim.retriever-lr 1e-4 --freeze-retriever $(scaled 50)"
  text() {
    echo "corpus $data/articles --out $out/text --tokenizer $out/corpus --max-wordpieces 128 --skip-passages 5"
    [ -d "$out/text/spans" ] || echo "spans $out/text"
  }
  warm_up() { # the reader on the searched passages, then on the rest; ICT from its encoder
    echo "warmup --from $out/begin --corpus $out/corpus --out $out/reading $read $held --reader.steps $(scaled 4000) --reader.lr 1e-3 --retriever.steps 0 $loop"
    echo "warmup --from $out/reading/model --corpus $out/text --out $out/reading-on $read --reader.steps $(scaled 3000) --reader.lr 6e-4 --retriever.steps 0 $loop"
    echo "warmup --from $out/reading/model --corpus $out/text --out $out/finding --towers-as-reader --reader.steps 0 --retriever.steps $(scaled 1000) --retriever.batch $(scaled 2048) --retriever.lr 5e-4 $loop"
    echo "graft --towers $out/finding/model --reader $out/reading-on/model --out $out/warmup/model"
  }
  ;;
warm)
  searched="--tokenizer $ENCODER"
  shape="--checkpoint $ENCODER --projection 384 --freeze-embeddings"
  joint="--optim.steps $(scaled 1500) --optim.lr 1e-4 --optim.retriever-lr 1e-5 --freeze-retriever $(scaled 100)"
  text() { :; }
  warm_up() {
    echo "warmup --from $out/begin --corpus $out/corpus --out $out/warmup $read $held --reader.steps $(scaled 6000) --reader.lr 4e-4 --retriever.steps 0 $loop"
  }
  ;;
esac
read="--pairing recurring --pointing 1 --reader.batch $(scaled 256)"

{
  echo "corpus $data/articles --out $out/corpus $searched --max-wordpieces 128"
  [ -d "$out/corpus/spans" ] || echo "spans $out/corpus"
  text
  echo "clozes $out/corpus --out $out/held-out.jsonl --count $(scaled 2000)"
  echo "model --corpus $out/corpus --out $out/begin $shape --pooling mean --reading together --read-titles --seed $seed"
  warm_up
  echo "pretrain --from $out/warmup/model --corpus $out/corpus --out $out/pretrain $held $joint --optim.batch $(scaled 128) --refresh.every-steps $(scaled 100) $loop"
  for model in warmup pretrain; do
    echo "evaluate --model $out/$model/model --corpus $out/corpus --questions $out/held-out.jsonl --read 7 --report $out/reports/$model-held-out.json --predictions $out/predictions/$model-held-out.jsonl"
    for file in $train; do
      name=$(basename "${file%%-train.*}")
      echo "evaluate --model $out/$model/model --corpus $out/corpus --questions $file --read 0 --report $out/reports/$model-zero-shot-$name.json --predictions $out/predictions/$model-zero-shot-$name.jsonl"
    done
    echo "finetune --from $out/$model/model --corpus $out/corpus --questions $train --out $out/questions-$model --read 8 --read-gold --candidates 100 --query projection --closed-book 0.02 --optim.steps $(scaled 950) --optim.batch $(scaled 64) --optim.lr 2e-4 --optim.retriever-lr 1e-4 $loop"
    for file in "$data"/questions/*-dev.*; do
      name=$(basename "${file%%-dev.*}")
      echo "evaluate --model $out/questions-$model/model --corpus $out/corpus --questions $file --read 20 --report $out/reports/questions-$model-$name.json --predictions $out/predictions/questions-$model-$name.jsonl"
    done
  done
} | realmlm batch - --log "$out/seconds.jsonl"
