#!/bin/sh
# compute-sanitizer over a small call of every op: memory errors, races in shared memory, barriers.
#   bench/gpu/sanitize.sh [LOG DIRECTORY]
# Needs a GPU, compute-sanitizer and an installed build. PYTHON chooses the interpreter.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
logs=${1:-build/sanitize}
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; exit 0; }
mkdir -p "$logs"
rm -f "$logs"/*.status
failed=0
for tool in memcheck racecheck synccheck initcheck; do
    options=
    # Workspaces are zeroed before their first use, so every byte that is read must have been written.
    [ "$tool" = memcheck ] && options="--leak-check no --report-api-errors no"
    # shellcheck disable=SC2086
    {
        compute-sanitizer --tool "$tool" $options --error-exitcode 9 --print-limit 20 \
            "$PYTHON" bench/gpu/every_op.py >"$logs/$tool.log" 2>&1 && echo clean >"$logs/$tool.status"
    } &
done
wait
for tool in memcheck racecheck synccheck initcheck; do
    echo "== $tool"
    tail -n 3 "$logs/$tool.log"
    [ -e "$logs/$tool.status" ] || failed=1
done
exit $failed
