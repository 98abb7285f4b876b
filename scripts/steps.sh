# scripts/steps.sh -- steps of a script: what each took, and its progress while it runs.
#
#   steps=demo; . scripts/steps.sh              # lines begin with 'demo: '
#   step "build" cmake --build --preset release # hides its output; prints 'demo: build: 182.4 s'
#   shown_step "test" ctest --preset release        # the same with the output shown
#   steps_end                                   # prints 'demo: all steps: 201.7 s'
#
# The output of a step goes to build/log/NAME-NUMBER.log. While it runs, its last line is shown: on a
# terminal in a line that is rewritten, elsewhere every 15 seconds. A step that fails prints the end
# of its output, and its status is the one of step. The command may be a function, which must return
# and not exit: its messages would be lost in the log.

steps_begin=${EPOCHREALTIME/[.,]/}
steps_count=0

# Seconds since a time in microseconds, as 12.3.
seconds_since() {
  local passed=$((${EPOCHREALTIME/[.,]/} - $1))
  printf '%d.%d' $((passed / 1000000)) $((passed % 1000000 / 100000))
}

# Shows the last line of a log until the caller kills it, or has ended itself.
watch_step() {
  local name=$1 log=$2 begin=$3 width shown=0 line
  width=$(stty size <&2 2>/dev/null) || width="24 80"
  width=${width#* }
  [ "$width" -ge 20 ] || width=80  # some terminals say 0
  while sleep 0.5 && kill -0 $$ 2>/dev/null; do
    # No line before there is output: sudo may be asking for a password.
    [ -s "$log" ] || continue
    line=$(tail -c 4000 "$log" | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1) || continue
    line="$steps: $name, $(seconds_since "$begin") s: $line"
    if [ -t 2 ]; then
      printf '\r\033[K%s' "${line:0:width-1}" >&2
    elif (($(seconds_since "$begin" | cut -d . -f 1) >= shown + 15)); then
      shown=$((shown + 15))
      printf '%s\n' "${line:0:160}" >&2
    fi
  done
}

step() {
  local name=$1 begin=${EPOCHREALTIME/[.,]/} status=0 log watcher
  shift
  steps_count=$((steps_count + 1))
  mkdir -p build/log
  log=build/log/$steps-$steps_count.log
  : >"$log"
  watch_step "$name" "$log" "$begin" &
  watcher=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $status != 0 ]; then
    tail -n 40 "$log" >&2
    printf '%s: %s failed after %s s; its output is in %s\n' \
        "$steps" "$name" "$(seconds_since "$begin")" "$log" >&2
    return $status
  fi
  printf '%s: %s: %s s\n' "$steps" "$name" "$(seconds_since "$begin")" >&2
}

shown_step() {
  local name=$1 begin=${EPOCHREALTIME/[.,]/} status=0
  shift
  "$@" || status=$?
  if [ $status != 0 ]; then
    printf '%s: %s failed after %s s\n' "$steps" "$name" "$(seconds_since "$begin")" >&2
    return $status
  fi
  printf '%s: %s: %s s\n' "$steps" "$name" "$(seconds_since "$begin")" >&2
}

steps_end() {
  printf '%s: all steps: %s s\n' "$steps" "$(seconds_since "$steps_begin")" >&2
}
