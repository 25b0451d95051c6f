# shellcheck shell=bash
# Output functions of the scripts: one line per step, details only for failures. The scripts source
# this file.

if [[ -t 1 ]]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' red='' plain=''
fi

say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; }

# run_logged LOG COMMAND...: on a terminal, the command prints directly. Otherwise its output is
# written to LOG and printed only if the command fails.
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

# configure PRESET [ARGUMENT...]: does nothing if the preset is configured with the same arguments and
# CMakePresets.json is older; the build reconfigures by itself when a CMake file changes. TERN_CMAKE_ARGS adds definitions,
# with quotes around values that have blanks.
configure() {
  local preset=$1
  shift
  local arguments=("$@")
  mapfile -t extra < <(xargs -r printf '%s\n' <<<"${TERN_CMAKE_ARGS:-}")
  arguments+=("${extra[@]}")
  local wanted="${arguments[*]}" done_file="build/$preset/configured_with.txt"
  if [[ -f build/$preset/build.ninja && $done_file -nt CMakePresets.json && $(<"$done_file") == "$wanted" ]]; then
    return 0
  fi
  run_logged "build/$preset/configure.log" cmake --preset "$preset" "${arguments[@]}" || return 1
  printf '%s\n' "$wanted" >"$done_file"
}

# Sets python_arguments to what CMake needs for the Python module: nothing if no interpreter has
# nanobind, NumPy and pytest.
find_python() {
  local python
  python_arguments=()
  for python in "$PWD/build/peers/bin/python3" "$(command -v python3)"; do
    "$python" -c 'import nanobind, numpy, pytest' 2>/dev/null || continue
    python_arguments=(-DTERN_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$python")
    return
  done
}
