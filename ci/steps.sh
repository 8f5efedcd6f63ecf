# Progress lines, logs and failure messages. Sourced by bootstrap.sh; used by starpu.sh too.
# shellcheck shell=bash

STEP_NUMBER=0
STEP_TOTAL=0

# fail SENTENCE [ADVICE]: says why on stderr and ends the script.
fail() {
    printf 'bootstrap: %s\n' "$1" >&2
    [[ -z ${2:-} ]] || printf '\n%s\n' "$2" >&2
    exit 1
}

note() {
    printf 'bootstrap: %s\n' "$1" >&2
}

# step TITLE LOG_NAME ADVICE COMMAND [ARG...]: runs the command with all its output in a log file, as one progress line.
# The command runs in a subshell: it can leave files behind, but no variables.
step() {
    local title=$1 log=$LOGS/$2.log advice=$3 started=$SECONDS status
    shift 3
    STEP_NUMBER=$((STEP_NUMBER + 1))
    printf '[%d/%d] %s ... ' "$STEP_NUMBER" "$STEP_TOTAL" "$title" >&2
    mkdir -p "$LOGS"
    # Inside `if` or `||` the shell would ignore set -e in the command, so the status is taken apart.
    set +e
    (
        set -e
        "$@"
    ) >"$log" 2>&1 </dev/null
    status=$?
    set -e
    if ((status == 0)); then
        printf '%d s\n' "$((SECONDS - started))" >&2
        return
    fi
    printf 'FAILED after %d s\n\n' "$((SECONDS - started))" >&2
    tail -n 15 "$log" | sed 's/^/    | /' >&2
    printf '\n' >&2
    fail "step $STEP_NUMBER ($title) failed; the whole log is $log" "$advice"
}
