#!/bin/sh
# Unpacks Debian's arm64 packages, with all that they depend on, below a folder: what a cross-build
# links with and what qemu's programs load.
#
#     tests/arm64/sysroot.sh FOLDER PACKAGE…
#
# Nothing is installed and nothing needs root: the system's packages stay as they are, and it is told
# of no foreign architecture. The system's sources and keys are used, with lists of packages of our
# own. Nothing is fetched when the folder was filled with the same packages before.
set -eu

folder=$1
shift
if [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ]; then
    exit 0
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
new=$folder.new apt=$folder.apt
rm -rf "$new" "$apt"
trap 'rm -rf "$new" "$apt"' EXIT
mkdir -p "$new" "$apt/lists/partial" "$apt/archives/partial"

fetch() {
    apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
        -o Dir::State::Lists="$apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$apt" \
        -o Dir::Cache::archives="$apt/archives" -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}
fetch update || : # a source that has nothing for arm64 is no matter, if the next line succeeds
fetch --download-only --no-install-recommends install "$@"
for deb in "$apt"/archives/*.deb; do
    dpkg-deb -x "$deb" "$new"
done

# What the packages' scripts would do: of several BLAS this one.
lib=$new/usr/lib/aarch64-linux-gnu
for f in "$lib"/openblas-pthread/*.so*; do
    ln -s "openblas-pthread/$(basename "$f")" "$lib/"
done
include=$new/usr/include/aarch64-linux-gnu
for f in "$include"/openblas-pthread/*.h; do
    ln -s "openblas-pthread/$(basename "$f")" "$include/"
done
echo "$*" >"$new/packages"
rm -rf "$folder"
mv "$new" "$folder"
