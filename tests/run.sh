#!/bin/sh
# Runs the test programs named on the command line, then the fuzzers' corpora and the suites that
# are not C; prints each suite's result and, last, `N passed, N failed`. A suite that dies counts as
# one failure more than it reported.
set -u

build=${SLATE_BUILD:-build/release}
passed=0 failed=0 skipped=0
log=$build/test-logs
mkdir -p "$log"
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS-}"

count() { # count FILE WORD: the sum of cmocka's "[  WORD  ] n test(s)" lines
    sed -n "s/^\[  $2 *\] \([0-9]*\) test(s).*/\1/p" "$1" | awk '{ n += $1 } END { print n + 0 }'
}

suite() { # suite NAME COMMAND…
    name=$1
    shift
    out=$log/$(echo "$name" | tr / -).log
    "$@" >"$out" 2>&1
    rc=$?
    p=$(count "$out" PASSED) f=$(count "$out" FAILED) s=$(count "$out" SKIPPED)
    [ "$rc" = 0 ] || [ "$f" -gt 0 ] || f=$((f + 1))
    [ "$rc" != 0 ] || [ "$((p + f + s))" -gt 0 ] || { f=1; echo 'no test ran' >>"$out"; }
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" = 0 ]; then
        printf 'ok    %-32s %s passed' "$name" "$p"
    else
        printf 'FAIL  %-32s %s passed, %s failed' "$name" "$p" "$f"
    fi
    [ "$s" = 0 ] || printf ', %s skipped' "$s"
    echo
    grep '^skipped: ' "$out" | sort | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/      \2 (\1 tests)/'
    [ "$f" = 0 ] || tail -n 40 "$out" | sed 's/^/      | /'
}

for t in "$@"; do
    suite "$(echo "${t#"$build"/tests/}" | sed 's/_test$//')" "$t"
done
for c in tests/fuzz/corpus/*/; do
    n=$(basename "$c")
    [ -x "$build/tests/fuzz/${n}_fuzz_replay" ] || continue
    suite "fuzz/$n" "$build/tests/fuzz/${n}_fuzz_replay" "$c"
done
for s in tests/*/suite.sh; do
    [ -x "$s" ] || continue
    suite "$(basename "$(dirname "$s")")/suite" "$s"
done

[ "$skipped" = 0 ] || echo "$skipped skipped (see above)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
