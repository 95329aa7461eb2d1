#!/usr/bin/env bash
# run.sh [HOST:PORT [BUNDLE [OUT]]]: count what a stream shows, by way of an MQTT broker.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v deco-run >/dev/null || PATH=$root/.venv/bin:$PATH
broker=${1:-localhost:1883} bundle=${2:-$root/demo-bundle} out=${3:-gate}
mkdir -p "$out"
rm -f "$out/counts.json"

python "$root/examples/gate/count.py" "$broker" gate "$out/counts.json" &
counter=$!
trap 'kill $counter 2>/dev/null || true' EXIT
until [ -e "$out/counts.json" ]; do # it listens
    kill -0 $counter 2>/dev/null || exit 1
    sleep 0.1
done

# A camera in place of the demo's stream: --camera 0. --output - shows beside it what is sent.
deco-run --bundle "$bundle" --state "$out/state" --demo --recipe deco+ --set segment=32 \
    --output "mqtt://$broker/gate" --output - --output-on change --output-after 0.2 >"$out/told.jsonl"
wait $counter
