#!/usr/bin/env bash
# run.sh [BUNDLE [OUT]]: teach a sorter a part that it has never seen, from twelve pictures, and take that back.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v deco-run >/dev/null || PATH=$root/.venv/bin:$PATH
bundle=${1:-$root/demo-bundle} out=${2:-sorter}
rm -rf "$out/state" "$out/square-nut" "$out/belt.avi"
mkdir -p "$out"
python "$root/examples/sorter/parts.py" "$out"

answers() { # of the belt: how many frames are answered as what
    echo "$1:"
    deco-run --bundle "$bundle" --state "$out/state" --recipe deco+ --video "$out/belt.avi" --max-segments 1 \
        --output - --output-on frame 2>/dev/null |
        grep -o '"class": *[^,]*' | cut -d: -f2 | sort | uniq -c | sort -rn
    echo
}

answers before
deco-run teach --bundle "$bundle" --state "$out/state" --class square-nut --images "$out/square-nut"
answers taught
deco-run teach --bundle "$bundle" --state "$out/state" --undo
answers undone
