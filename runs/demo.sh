#!/usr/bin/env bash
# The main job, end to end, with what comes with realmlm (the model mini, the pocket encyclopedia) and a folder; minutes on two CPU cores.
# Expected: 174 of the 200 questions answered exactly (in float32, where a CPU has nothing quicker, 176); recall on held-out masked words of the documents about as high after adapting as before, or higher: then the model is kept.
#
#   runs/demo.sh [FOLDER]      SERVE=1 leaves the page running
set -euo pipefail
out=${1:-work/demo}
export TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=passive
step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }

[ -n "${1:-}" ] || rm -rf "$out" # what another run left there; a folder that was named is left as it is
[ ! -e "$out" ] || { echo "$out already exists; name another folder, or remove it first" >&2; exit 2; }
step "1/4  five questions, answered from 404 articles: the answer, how sure it is, and where it was found"
python runs/demo_questions.py

step "2/4  two hundred questions, written independently of the articles: how many are answered exactly?"
realmlm corpus realmlm/pocket/encyclopedia.jsonl --out "$out/pocket" --tokenizer mini --max-wordpieces 128
realmlm evaluate --corpus "$out/pocket" --questions realmlm/pocket/questions.jsonl --report "$out/questions.json"

step "3/4  the retriever adapts to a folder, this project's documents, without labels; watch recall move, then the verdict on what was held out"
realmlm adapt --docs docs --out "$out/adapted"

step "4/4  the curves and the numbers as one page: $out/report.html"
realmlm report "$out/adapted" --evaluations "$out/questions.json" --out "$out/report.html"

if [ -n "${SERVE:-}" ]; then
  step "the page: ask, fill in, change what it knows, look at the training (Ctrl-C stops it)"
  realmlm serve --corpus "$out/pocket" --runs "$out/adapted/adapting"
else
  printf '\nmake demo SERVE=1 leaves a page running where you can ask. Your own documents: realmlm ask "…" --docs FOLDER\n' >&2
fi
