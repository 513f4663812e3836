#!/usr/bin/env bash
# Tables 1 and 2 on real text, in full: every arm and seed of docs/study.md, one after another, then the tables. Run it again to resume.
#
#   runs/mini.sh clean FOLDER DATA && COMPILE=1 runs/text_tables.sh FOLDER DATA
#
# With 80 GB or more of GPU memory several arms can run at once, each with its own call of runs/text_study.sh: joint training takes 25 to 30 GB, ICT
# up to 62, learning questions 12. The arm `news` runs only if DATA/news exists, `tagger` only if TAGGER=folder names one.
set -euo pipefail
base=$1 data=$2 here=$(dirname "$0")
text() { bash "$here/text_study.sh" "$base" "$data" "$@"; }
questions() { QUESTIONS=1 TEST=1 text "$@"; }

for seed in 0 1 2; do
  questions realm "$seed"
  questions warmup "$seed"
  questions ict "$seed"
done
for seed in 0 1; do
  questions realm-longer "$seed"
  questions realm-longer-as-is "$seed"
  questions warmup-as-is "$seed"
done
for arm in bm25 hard-em glimpses; do questions "$arm"; done
for arm in frozen ict-longer plain uniform random-span stale no-null same-text own-passage realm-retriever realm-reader; do text "$arm"; done
[ ! -e "$data/news" ] || questions news
[ -z "${TAGGER:-}" ] || text tagger
python "$here/text_table.py" "$base" dev
python "$here/text_table.py" "$base" test
