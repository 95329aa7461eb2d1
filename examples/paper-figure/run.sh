#!/usr/bin/env bash
# run.sh [OUT]: accuracy while a stream is learned from, for DECO and what it is compared with: trials, table, figures.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v deco-eval >/dev/null || PATH=$root/.venv/bin:$PATH
out=${1:-paper-figure}
# More of it: --data cifar10 --rows all --ipc 1,10 --seeds 5 --preset paper, in hours. A second call goes on where the
# first one stopped.
deco-eval run --data digits --labelled 0.05 --ipc 2 --preset smoke --seeds "${SEEDS:-2}" \
    --rows Frozen,Head,FIFO,DECO,DECO+ --out "$out/results"
deco-eval table "$out/results" >"$out/table.md"
deco-eval plot "$out/results" --out "$out/figures"
