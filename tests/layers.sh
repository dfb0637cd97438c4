#!/bin/sh
# The layer check: who may include whom (the design of the folders), and what is banned everywhere.
#
#     include/slate  <-  engine/base  <-  engine, proto  <-  server
#
# Prints each line that breaks a rule; exits 1 when there is one.
set -u
cd "$(dirname "$0")/.."
bad=$(mktemp)
trap 'rm -f "$bad"' EXIT

rule() { # rule "what is wrong" PATTERN FILES…: no line of the files may match
    what=$1 pattern=$2
    shift 2
    [ "$#" -gt 0 ] || return 0
    grep -nHE "$pattern" "$@" 2>/dev/null | sed "s|^|$what: |" >>"$bad"
}

files() { # files FOLDER…: the C files below
    git ls-files -co --exclude-standard -- "$@" | grep '\.[ch]$' || :
}

not_in() { # not_in PATTERN: from stdin, without the paths that match
    grep -vE "$1" || :
}

inc='^ *# *include *'
# shellcheck disable=SC2046
{
    rule 'include/slate includes only its own and the system' \
        "${inc}\"(engine|proto|server|tests)/" $(files include)
    rule 'engine/base knows include/slate only' \
        "${inc}\"(engine/[^b]|engine/b[^a]|proto|server|tests)/?" $(files engine/base)
    rule 'engine knows neither proto nor server' "${inc}\"(proto|server|tests)/" $(files engine)
    rule 'proto knows neither engine (but engine/base) nor server' \
        "${inc}\"(engine/[^b]|engine/b[^a]|server|tests)/?" $(files proto)
    rule 'server does not include tests' "${inc}\"tests/" $(files server)
    rule 'libuv, llhttp and hiredis belong to server' "${inc}<(uv|llhttp|hiredis)" \
        $(files engine proto include)
    rule 'jansson belongs to proto, formats, snapshots and the JSON tokenizer' "${inc}<jansson" \
        $(files engine include server |
            not_in '^engine/formats/|^engine/snapshot|^engine/tokenizers/bpe')
    rule 'BLAS and LAPACK belong to engine/kernels/blas.c' "${inc}<(cblas|lapacke)" \
        $(files engine include proto server | not_in '^engine/kernels/blas\.c$')
    rule 'kernels take primitives, never a model' \
        "${inc}\"(engine/(model|forward|turn|batch|mixers)|slate/(model|engine|session))" \
        $(files engine/kernels)
    rule 'a banned function' \
        '(^|[^a-z_])(atoi|atol|sprintf|vsprintf|strcpy|strcat|strtok|alloca|gets)\(' \
        $(files engine include proto server)
    rule 'memory comes from engine/base/mem.h' '(^|[^a-z_])(malloc|calloc|realloc|reallocarray|free)\(' \
        $(files engine proto server | not_in '^engine/base/mem\.c$')
    rule 'exit belongs to main' '(^|[^a-z_])exit\(' \
        $(files engine include proto server | not_in '^server/main\.c$')
    rule 'the library does not log' 'sl_log(_[a-z]+)?\(|fprintf\((stderr|stdout)|[^a-z_f]printf\(' \
        $(files engine include proto | not_in '^engine/base/log\.[ch]$')
    rule 'a TODO names its issue' 'TODO[^(]|TODO\([^#]|FIXME|(^|[^X])XXX([^X]|$)' $(files engine include proto server tests)
    rule 'no sleeping' '(^|[^a-z_])(u|nano)?sleep\(' $(files engine include proto server tests)
    rule '-ffinite-math-only is banned' 'ffinite-math-only|ffast-math' Makefile
}
for f in $(files engine include proto server tests); do
    n=$(wc -l <"$f")
    [ "$n" -le 600 ] || echo "a file of more than 600 lines: $f: $n" >>"$bad"
done
# Top level: what the layout names and dot-files, nothing else.
git ls-files | grep -v / | grep -vE '^(Makefile|README\.md|\..*)$' | sed 's/^/not at the top level: /' >>"$bad"
git ls-files | grep / | cut -d/ -f1 | sort -u |
    grep -vE '^(server|engine|include|proto|deploy|tests|\..*)$' | sed 's/^/not at the top level: /' >>"$bad"

if [ -s "$bad" ]; then
    cat "$bad"
    exit 1
fi
echo "layers hold"
