#!/usr/bin/env bash
# Keeps the documentation true: the C++ of docs/cpp.md is examples/readme.cpp, which is run. The
# commands of docs/command-line.md run on small files of the names and the format that they use, and
# those of docs/tutorials/service.md on a free port.
#
#   readme_test.sh ROOT BIN        BIN holds the programs knear and readme_example
set -euo pipefail
root=$1 bin=$2

fail() { printf 'readme_test: %s\n' "$*" >&2; exit 1; }
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d;p}" "$root/$2"; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export XDG_CACHE_HOME=$folder/cache

block cpp docs/cpp.md >readme.cpp
[ -s readme.cpp ] || fail "docs/cpp.md has no C++"
# The file has a comment and an empty line before what the README shows.
tail -n +3 "$root/examples/readme.cpp" | diff readme.cpp - ||
  fail "docs/cpp.md and examples/readme.cpp differ"

# Images of noise, always the same: 400 to search in, of which numbers 7 to 206 are the queries.
head -c $((400 * 784)) < <(seq 1 200000 | gzip -n 2>/dev/null) >pixels
[ "$(wc -c <pixels)" = $((400 * 784)) ] || fail "too few pixels"
{ printf '\0\0\10\3\0\0\1\220\0\0\0\34\0\0\0\34'; cat pixels; } | gzip >train-images-idx3-ubyte.gz
{ printf '\0\0\10\3\0\0\0\310\0\0\0\34\0\0\0\34'; head -c $((207 * 784)) pixels | tail -c $((200 * 784)); } |
  gzip >t10k-images-idx3-ubyte.gz

"$bin/readme_example" train-images-idx3-ubyte.gz t10k-images-idx3-ubyte.gz >found
[ "$(wc -l <found)" = 10 ] || fail "the example printed $(wc -l <found) lines, not 10"
[ "$(head -n 1 found)" = "7 at squared distance 0" ] || fail "the example found: $(head -n 1 found)"

block sh docs/command-line.md >commands
[ "$(grep -c '^knear ' commands)" -ge 5 ] || fail "docs/command-line.md has no commands"
PATH=$bin:$PATH bash -eu commands >printed || fail "a command of docs/command-line.md failed"
grep -q '"certified_queries": *100' printed || fail "search --json does not certify its 100 queries"
for file in near.ivecs truth.npy; do [ -s $file ] || fail "no $file was written"; done

if command -v curl >/dev/null; then
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
  { echo 'set -m'; block sh docs/tutorials/service.md | sed "s/8080/$port/g"; } >commands
  PATH=$bin:$PATH bash -eu commands >printed || fail "a command of docs/tutorials/service.md failed"
  for answer in '"ids":[[0]]' '"ids":[7]' '"ids":[[7]]'; do
    grep -qF "$answer" printed || fail "the service did not answer $answer: $(cat printed)"
  done
else
  echo "readme_test: no curl, so docs/tutorials/service.md was not run"
fi
echo "readme_test: example and commands do what is written"
