#!/bin/sh
# Installs those of the named Debian packages that are missing; says which before it asks for root.
# Nothing is asked for, and no network is used, when all of them are there. A program that is there
# without its package (another source of Node.js, say) counts as there.
set -eu

have() {
    case $1 in
    nodejs) command -v node >/dev/null && command -v npm >/dev/null && return 0 ;;
    gcc | make | clang | curl | valgrind | clang-tidy | clang-format | pkg-config)
        command -v "$1" >/dev/null && return 0 ;;
    esac
    dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

missing=
for p in "$@"; do
    have "$p" || missing="$missing $p"
done
# Debian's nodejs comes without npm.
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
$root apt-get update -q
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
