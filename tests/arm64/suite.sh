#!/bin/sh
# Tests of an arm64 build, cross-built and run under qemu: the kernels' unit tests, and the bits of
# every rule's forward pass beside those of the build that tests otherwise (SLATE_BUILD). Run by
# tests/run.sh, and by `make arm64`. The whole program is built, too.
set -u

x86=${SLATE_BUILD:-build/release}
arm=build/arm64
sysroot=build/arm64-sysroot
tests='kernels_test kernels_ref_test kernels_functions_test kernels_choice_test quant_test
    quant_products_test kquant_test pack_test limits_test'

skip() { # skip WHY: counted by run.sh
    echo "skipped: arm64 under qemu: $1"
    echo '[  SKIPPED ] 1 test(s).'
    exit 0
}

[ "$(uname -m)" = x86_64 ] || skip 'a cross-build is made on x86-64'
[ "$x86" = build/release ] || skip 'once, beside the release build'
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null || skip "no $tool (make deps-test)"
done
make=${MAKE:-make}
MAKEFLAGS='' $make --no-print-directory FLAVOR=arm64 sysroot || skip 'no arm64 packages to be had'

targets=$arm/tests/arm64/bits
for t in $tests; do
    targets="$targets $arm/tests/unit/$t"
done
# shellcheck disable=SC2086
MAKEFLAGS='' $make --no-print-directory -j"$(nproc)" FLAVOR=arm64 all $targets || exit 1

rc=0
log=$arm/suite
rm -rf "$log"
mkdir -p "$log"
# shellcheck disable=SC2016,SC2086
printf '%s\n' $tests | xargs -P "$(nproc)" -I {} sh -c \
    'qemu-aarch64 -L "$1" "$2/tests/unit/$4" >"$3/$4" 2>&1 || touch "$3/failed"' \
    run "$sysroot" "$arm" "$log" {}
cat "$log"/*_test
[ ! -e "$log/failed" ] || rc=1

# Each line of bits is one test: a model's logits and state.
"$x86/tests/arm64/bits" >"$log/x86" || rc=1
n=$(wc -l <"$log/x86")
for table in neondot neon; do
    echo "bits: $table"
    qemu-aarch64 -L "$sysroot" "$arm/tests/arm64/bits" $table >"$log/$table" || rc=1
    if [ "$n" -gt 0 ] && diff "$log/x86" "$log/$table"; then
        echo "[  PASSED  ] $n test(s)."
    else
        echo "[  FAILED  ] $n test(s)."
        rc=1
    fi
done
exit $rc
