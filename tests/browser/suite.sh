#!/bin/sh
# The checks that need packages from npm: every recorded response against proto/openapi.yaml, and
# the official OpenAI client. Run by tests/run.sh after the API tests, whose record it reads.
# Packages and the copies that run lie in build/node, nothing in the source tree.
set -u

build=${SLATE_BUILD:-build/release}
node=build/node
here=tests/browser
mkdir -p "$node"

# npm only where the packages are not those of the lock file.
if ! cmp -s "$here/package-lock.json" "$node/installed.json"; then
    rm -f "$node/installed.json"
    cp "$here/package.json" "$here/package-lock.json" "$node/"
    (cd "$node" && npm ci --no-audit --no-fund --ignore-scripts) || exit 1
    cp "$here/package-lock.json" "$node/installed.json"
fi
cp "$here"/*.mjs "$node/" # beside node_modules, where imports are looked for

rc=0
node "$node/openapi.test.mjs" proto/openapi.yaml "${SLATE_API_RECORD:-$build/api-record}" || rc=1
SLATE_BUILD=$build node "$node/openai.test.mjs" || rc=1
exit $rc
