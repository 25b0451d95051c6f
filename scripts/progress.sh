# shellcheck shell=bash
# How the scripts speak: one line per step, details only of what failed. Sourced by them.

if [[ -t 1 ]]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' red='' plain=''
fi

say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; }

# run_logged LOG COMMAND...: on a terminal the command shows its own progress; elsewhere its output
# goes to LOG, and is shown only if it fails.
run_logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if [[ -t 1 ]]; then
    "$@"
  elif ! "$@" >"$log" 2>&1; then
    tail -n 200 "$log"
    return 1
  fi
}

# configure PRESET [ARGUMENT...]: skipped where it has been done, because the build repeats it by
# itself when a file it depends on changes. TERN_CMAKE_ARGS may hold further definitions.
configure() {
  local preset=$1
  shift
  local arguments=("$@")
  read -ra extra <<<"${TERN_CMAKE_ARGS:-}"
  arguments+=("${extra[@]}")
  local wanted="${arguments[*]}" done_file="build/$preset/configured_with.txt"
  if [[ -f build/$preset/build.ninja && -f $done_file && $(<"$done_file") == "$wanted" ]]; then
    return 0
  fi
  run_logged "build/$preset/configure.log" cmake --preset "$preset" "${arguments[@]}" || return 1
  printf '%s\n' "$wanted" >"$done_file"
}
