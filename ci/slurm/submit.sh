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

A job that can never start, for example because its partition allows less time, is cancelled. A job takes no more time
than its partition allows, unless --time is given.

STARPULLM_RANKS ("2 4 8"), STARPULLM_SUITE_OPTIONS, STARPULLM_PARITY_OPTIONS, STARPULLM_GATE_OPTIONS and
STARPULLM_BASELINE_LIB are passed on.

Exit status (of the summary too): 0 everything ran and passed; 1 a check failed; 2 bad usage, or nothing was compared;
3 not comparable, as with a BLAS; 4 a job did not run to its end (time limit, node failure, crash, queue).
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

# seconds_of TIME: of Slurm's D-HH:MM:SS or a part of it; nothing for a time without an end.
seconds_of() {
    [[ $1 =~ ^(([0-9]+)-)?(([0-9]+):)?([0-9]+):([0-9]+)$ ]] || return 0
    local days=$((10#0${BASH_REMATCH[2]})) hours=$((10#0${BASH_REMATCH[4]})) minutes=$((10#${BASH_REMATCH[5]}))
    echo $((((days * 24 + hours) * 60 + minutes) * 60 + 10#${BASH_REMATCH[6]}))
}

# partition_limit SBATCH_OPTION...: the longest time that the job's partitions allow; nothing if there is no limit.
partition_limit() {
    local partition=${SBATCH_PARTITION:-} name limit longest=
    while (($#)); do
        case $1 in
            --partition=*) partition=${1#*=} ;;
            --partition | -p) partition=${2:-} ;;
            -p*) partition=${1#-p} ;;
        esac
        shift
    done
    while read -r name limit; do
        [[ -n $partition || $name == *'*' ]] || continue
        [[ -n $(seconds_of "$limit") ]] || return 0
        [[ -n $longest ]] && (($(seconds_of "$limit") <= $(seconds_of "$longest"))) || longest=$limit
    done < <(sinfo --noheader --format='%P %l' ${partition:+--partition="$partition"} 2>/dev/null)
    echo "$longest"
}

# limit_time NAME TIME SBATCH_OPTION...: sets LIMITS to the options of a job that its partition gives less time than it
# asks for, and says so. Slurm's signal comes before the limit, in the last fifth of a short job.
limit_time() {
    local name=$1 asked=$2 limit seconds
    shift 2
    LIMITS=()
    limit=$(partition_limit "$@")
    seconds=$(seconds_of "$limit")
    [[ -n $seconds ]] && ((seconds < $(seconds_of "$asked"))) || return 0
    echo "$name: takes at most $limit instead of $asked, because its partition allows no more" >&2
    LIMITS=(--time="$limit")
    ((seconds >= 600)) || LIMITS+=(--signal=B:TERM@$((seconds / 5)))
}

# Whether the jobs' user says how long they may take.
gives_time() {
    local option
    for option; do
        [[ $option != --time* && $option != -t* ]] || return 0
    done
    [[ -n ${SBATCH_TIMELIMIT:-} ]]
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
    if ! gives_time "$@"; then
        limit_time "$job" "$(sed -n 's/^#SBATCH --time=//p' "$CI/$job.sbatch")" "$@"
        options+=(${LIMITS[@]+"${LIMITS[@]}"})
    fi
    submit "$job" ${options[@]+"${options[@]}"} "$@"
done

# Says why a job doesn't start, and cancels one that never can, or that has waited for too long.
LIST=$(IFS=, && echo "${IDS[*]}")
STARTED=$SECONDS
SAID=
judge_pending() {
    local id=$1 name=$2 reason=$3 why=
    case $reason in
        PartitionConfig | PartitionTimeLimit | PartitionNodeLimit | BadConstraints | DependencyNeverSatisfied | \
            Invalid* | *NotAllowed | *PerJob* | *NotSatisfied) why="can't start ($reason)" ;;
        *)
            if [[ -n $QUEUE_LIMIT ]] && ((SECONDS - STARTED >= QUEUE_LIMIT)); then
                why="not started after $QUEUE_LIMIT s ($reason)"
            fi
            ;;
    esac
    if [[ -n $why ]]; then
        grep -qs "^$name " "$RESULTS/queue" || echo "$name $why" >>"$RESULTS/queue"
        scancel --state=PENDING "$id" || true
    fi
    if [[ $reason != None && $SAID != *" $id ${why:-$reason};"* ]]; then
        SAID+=" $id ${why:-$reason};"
        echo "$name: ${why:-waits ($reason)}${why:+; cancelled}" >&2
    fi
}

# Looks at the jobs that Slurm still has; 1: there is none, 2: Slurm can't be asked.
look() {
    local jobs id name state reason
    if ! jobs=$(squeue --noheader --jobs="$LIST" --format='%i %j %T %r' 2>&1); then
        [[ $jobs == *"Invalid job id"* ]] && return 1 # it forgets them after a while
        [[ $SAID == *"${jobs##*$'\n'}"* ]] || echo "squeue fails, the jobs are still waited for: ${jobs##*$'\n'}" >&2
        SAID+=${jobs##*$'\n'}
        return 2
    fi
    jobs=$(grep '^[0-9]' <<<"$jobs") || return 1
    while read -r id name state reason; do
        [[ $state != PENDING ]] || judge_pending "$id" "$name" "$reason"
    done <<<"$jobs"
}

if [[ -z $WAIT ]]; then
    look || true
    after=$(IFS=: && echo "${IDS[*]}")
    # After the user's options, because the last one counts.
    limit_time summary 10:00 "$@"
    sbatch "$@" --parsable --job-name=summary --output="$RESULTS/summary.txt" --dependency="afterany:$after" \
        --kill-on-invalid-dep=no --nodes=1 --ntasks=1 --time=10 ${LIMITS[@]+"${LIMITS[@]}"} "$CI/summary.sbatch" >/dev/null ||
        refuse "summary: sbatch has refused it" 4
    echo "results: $RESULTS, at the end also summary.txt and summary.json" >&2
    exit
fi

# Ends what is still there if this script is ended, for example by a CI job's own time limit.
trap 'scancel "${IDS[@]}"; exit 4' INT TERM
while look; (($? != 1)); do
    sleep 1
done
exec python3 "$CI/summary.py" "$RESULTS"
