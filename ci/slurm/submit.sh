#!/usr/bin/env bash
# Submits the validation of this machine's starpullm to Slurm, and a job that summarises it.
set -euo pipefail

usage() {
    cat <<'EOT'
usage: ci/slurm/submit.sh [OPTION...] JOB... [-- SBATCH_OPTION...]

Jobs: one-node (the suite on all partitions of a node), ranks (parity over the ranks of several nodes), gate (throughput
on an exclusive node, against STARPULLM_BASELINE_LIB). `all` means those that can run. Submit from the environment in
which `starpullm doctor` works; the jobs inherit it. Options after -- are passed to sbatch for each job: --partition, --account, --time, --signal, ...

  --results DIR      folder for the results, on a file system that all nodes share; new or empty
  --nodes N          nodes of `ranks`; default 2
  --wait             wait for the end, print the summary, and exit with its status
  --queue-limit S    with --wait: cancel jobs that have not started S seconds after the submission

STARPULLM_RANKS ("2 4 8"), STARPULLM_SUITE_OPTIONS, STARPULLM_PARITY_OPTIONS, STARPULLM_GATE_OPTIONS and
STARPULLM_BASELINE_LIB are passed on.

Exit status (of the summary too): 0 everything ran and passed; 1 a check failed; 2 bad usage, or nothing was compared;
3 not comparable on this machine; 4 a job did not run to its end (time limit, node failure, crash, queue).
EOT
}

refuse() {
    printf 'submit: %s\n' "$1" >&2
    exit "${2:-2}"
}

CI=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
RESULTS=
NODES=2
WAIT=
QUEUE_LIMIT=
JOBS=()
while (($#)); do
    case $1 in
        -h | --help) usage; exit ;;
        --results) RESULTS=${2:?}; shift 2 ;;
        --nodes) NODES=${2:?}; shift 2 ;;
        --wait) WAIT=1; shift ;;
        --queue-limit) QUEUE_LIMIT=${2:?}; shift 2 ;;
        --) shift; break ;;
        all) JOBS+=(one-node ranks ${STARPULLM_BASELINE_LIB:+gate}); shift ;;
        one-node | ranks | gate) JOBS+=("$1"); shift ;;
        *) usage >&2; exit 2 ;;
    esac
done
[[ " ${JOBS[*]-} " != *" gate "* || -n ${STARPULLM_BASELINE_LIB:-} ]] || refuse "gate: expected STARPULLM_BASELINE_LIB"
((${#JOBS[@]})) || refuse "no job named, expected one-node, ranks, gate or all"
[[ -n $RESULTS ]] || refuse "--results: expected a folder that all nodes share"
[[ $NODES =~ ^[1-9][0-9]*$ ]] || refuse "--nodes: found \"$NODES\", expected a positive number"
[[ $QUEUE_LIMIT =~ ^[0-9]*$ ]] || refuse "--queue-limit: found \"$QUEUE_LIMIT\", expected seconds"
[[ -z $QUEUE_LIMIT || -n $WAIT ]] || refuse "--queue-limit: expected --wait with it"
command -v sbatch >/dev/null || refuse "sbatch: not found on PATH, expected Slurm's commands"
mkdir -p "$RESULTS"
[[ -z $(ls -A "$RESULTS") ]] || refuse "$RESULTS: found files, expected a new or empty folder"
RESULTS=$(cd "$RESULTS" && pwd -P)
export STARPULLM_RESULTS=$RESULTS STARPULLM_CI=$CI

# The most ranks on one node, by the largest number of ranks.
ranks_per_node() {
    local most=1 ranks
    for ranks in ${STARPULLM_RANKS:-2 4 8}; do
        ((ranks <= most)) || most=$ranks
    done
    echo $(((most + NODES - 1) / NODES))
}

IDS=()
submit() {
    local name=$1 id
    shift
    if ! id=$(sbatch --parsable --job-name="$name" --output="$RESULTS/$name.out" --open-mode=append "$@" \
        "$CI/$name.sbatch"); then
        ((${#IDS[@]} == 0)) || scancel "${IDS[@]}"
        refuse "$name: sbatch has refused it; the other jobs were cancelled" 4
    fi
    id=${id%%;*}
    echo "$name $id" >>"$RESULTS/jobs"
    IDS+=("$id")
    echo "$name: job $id" >&2
}

for job in "${JOBS[@]}"; do
    options=()
    [[ $job != ranks ]] || options=(--nodes="$NODES" --ntasks-per-node="$(ranks_per_node)")
    submit "$job" ${options[@]+"${options[@]}"} "$@"
done

if [[ -z $WAIT ]]; then
    after=$(IFS=: && echo "${IDS[*]}")
    # After the user's options, because the last one counts.
    sbatch "$@" --parsable --job-name=summary --output="$RESULTS/summary.txt" --dependency="afterany:$after" \
        --kill-on-invalid-dep=no --nodes=1 --ntasks=1 --time=10 "$CI/summary.sbatch" >/dev/null ||
        refuse "summary: sbatch has refused it" 4
    echo "results: $RESULTS, at the end also summary.txt and summary.json" >&2
    exit
fi

# Ends what is still there if this script is ended, for example by a CI job's own time limit.
trap 'scancel "${IDS[@]}"; exit 4' INT TERM
list=$(IFS=, && echo "${IDS[*]}")
started=$SECONDS
while [[ -n $(squeue --noheader --jobs="$list" --format=%i 2>/dev/null) ]]; do
    if [[ -n $QUEUE_LIMIT ]] && ((SECONDS - started >= QUEUE_LIMIT)); then
        for id in $(squeue --noheader --jobs="$list" --states=PENDING --format=%i 2>/dev/null); do
            squeue --noheader --jobs="$id" --format="%j not started after $QUEUE_LIMIT s (%r)" >>"$RESULTS/queue"
            scancel --state=PENDING "$id"
        done
        QUEUE_LIMIT=
    fi
    sleep 1
done
exec python3 "$CI/summary.py" "$RESULTS"
