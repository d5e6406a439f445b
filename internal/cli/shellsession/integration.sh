unalias tka 2>/dev/null || true
function tka {
  local tka_dir tka_code=0
  tka_dir=$(umask 077 && command mktemp -d "${TMPDIR:-/tmp}/tka.XXXXXXXXXX") || tka_dir=
  if [ -z "$tka_dir" ]; then
    command @PROGRAM@ "$@"
    return
  fi
  @VARIABLE@="$tka_dir/@SHELL@" command @PROGRAM@ "$@" || tka_code=$?
  if [ "$tka_code" -eq 0 ] && [ -s "$tka_dir/@SHELL@" ]; then
    . "$tka_dir/@SHELL@"
  fi
  command rm -rf -- "$tka_dir"
  return "$tka_code"
}
