# Sourced by tools/demo, test/run and test/clients/run_all: a server on a free port of loopback for as long as a script runs.
#
#   start_server LOG COMMAND...   COMMAND is a `spate serve` with --port 0. Sets $server (its process) and $url when it is
#                                 ready; prints its log and fails when it ends or is not ready after 20 s.
#   stop_server                   ends it and waits; nothing when there is none
server= url=

start_server() {
  local log=$1
  shift
  : >"$log"
  "$@" >"$log" 2>&1 &
  server=$!
  for _ in $(seq 400); do
    url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$log" | head -1)
    if [ -n "$url" ] && curl -fs "$url/health" >/dev/null 2>&1; then return 0; fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
  done
  cat "$log"
  return 1
}

stop_server() {
  [ -n "$server" ] || return 0
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}
