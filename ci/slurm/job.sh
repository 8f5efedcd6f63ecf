# What the jobs of this folder have in common: they record what they run, and end it before Slurm would kill it.
# Sourced by the *.sbatch scripts, which submit.sh submits with STARPULLM_RESULTS set.
# shellcheck shell=bash

# In FOLDER, the job's part of the results:
#   job              one line: job id, number of restarts, nodes
#   parts            the names of the commands that the job runs, one after the other
#   PART.log         output of a command
#   PART.status      its exit status; "limit" if it was ended at the job's time limit; missing while it runs
#   PART.report      folder of its report
#   status           the job's exit status, when all parts have run
FOLDER=
PART=
PART_PID=
EXIT_STATUS=0

# Seconds that the ranks of a part have to say where they were.
GRACE_SECONDS=10

# begin_job PART...: a job that is run again after a node has failed starts from the beginning.
begin_job() {
    FOLDER=$STARPULLM_RESULTS/$SLURM_JOB_NAME
    mkdir -p "$FOLDER"
    rm -rf "$FOLDER"/*.status "$FOLDER"/*.report "$FOLDER"/status
    write parts "$*"
    write job "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST"
    trap end_at_limit TERM
    # Open MPI starts its daemons by srun, inside the allocation that this script is a part of.
    export SLURM_OVERLAP=1
    ((EUID == 0)) && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    return 0
}

# write NAME TEXT: a file that appears whole.
write() {
    printf '%s\n' "$2" >"$FOLDER/.$1.tmp"
    mv "$FOLDER/.$1.tmp" "$FOLDER/$1"
}

# run_part NAME COMMAND...: runs a command in a process group of its own, and goes on after a failure.
run_part() {
    local status=0
    PART=$1
    shift
    set -m
    "$@" >"$FOLDER/$PART.log" 2>&1 </dev/null &
    PART_PID=$!
    set +m
    wait "$PART_PID" || status=$?
    write "$PART.status" "$status"
    PART_PID=
    # The first failure is the job's.
    ((EXIT_STATUS != 0)) || EXIT_STATUS=$status
}

# Slurm sends TERM to this script some time before the limit (--signal=B:TERM@SECONDS).
end_at_limit() {
    trap '' TERM
    if [[ -n $PART_PID ]]; then
        kill -TERM -- "-$PART_PID" 2>/dev/null
        local tenths=0
        while kill -0 -- "-$PART_PID" 2>/dev/null && ((tenths++ < 10 * GRACE_SECONDS)); do
            sleep 0.1
        done
        kill -KILL -- "-$PART_PID" 2>/dev/null
        write "$PART.status" limit
    fi
    exit 124
}

end_job() {
    write status "$EXIT_STATUS"
    exit "$EXIT_STATUS"
}
