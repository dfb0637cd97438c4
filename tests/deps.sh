#!/bin/sh
# Installs those of the named Debian packages that are missing; says which before it asks for root.
# Nothing is asked for, and no network is used, when all of them are there. A program that is there
# without its package (another source of Node.js, say) counts as there.
set -eu

have() {
    case $1 in
    nodejs) # with npm, which Debian's package of that name comes without
        command -v node >/dev/null && command -v npm >/dev/null
        return ;;
    gcc | make | clang | curl | valgrind | clang-tidy | clang-format | pkg-config)
        command -v "$1" >/dev/null && return 0 ;;
    esac
    dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

missing=
for p in "$@"; do
    have "$p" || missing="$missing $p"
done
case " $missing " in *' nodejs '*) missing="$missing npm" ;; esac
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "slate: these packages are missing (names as in Debian):$missing" >&2
    exit 1
fi
echo "slate: installing missing packages:$missing"
root=
if [ "$(id -u)" != 0 ]; then
    root=sudo
    command -v sudo >/dev/null || {
        echo "slate: not root and no sudo; as root: apt-get install$missing" >&2
        exit 1
    }
fi

# Some packages are wanted for their programs, but start a service too, now and at every boot. That
# is prevented, unless the system has a policy of its own.
services=
for p in $missing; do
    case $p in haproxy | nginx | redis-server) services="$services $p" ;; esac
done
policy=/usr/sbin/policy-rc.d
if [ -n "$services" ] && [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
    trap '$root rm -f $policy' EXIT
    trap 'exit 1' INT TERM
    $root chmod 755 $policy
fi

$root apt-get update -q
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
if [ -n "$services" ] && command -v systemctl >/dev/null; then
    # shellcheck disable=SC2086
    $root systemctl disable -q $services || true
fi
