/* Hands out what was recorded of a session's tasks: the trace, the handles that it names, and the instruments'
 * findings. */
#include "trace/record.h"

#include "session/session.h"

static status finish_trace(struct starpullm_session *session)
{
    if (!session->recorder)
        return invalid_state("the session isn't traced, expected one created with trace");
    TRY(check_not_held(session->hold));
    return starpullm_session_wait(session);
}

status starpullm_session_trace_size(starpullm_session *session, size_t *tasks, size_t *accesses)
{
    CHECK_POINTERS(session, tasks, accesses);
    TRY(finish_trace(session));
    recorder_size(session->recorder, tasks, accesses);
    return STARPULLM_OK;
}

status starpullm_session_trace_read(starpullm_session *session, struct starpullm_trace_task *tasks, size_t num_tasks,
                                    struct starpullm_trace_access *accesses, size_t num_accesses)
{
    CHECK_POINTERS(session, tasks, accesses);
    TRY(finish_trace(session));
    return recorder_copy(session->recorder, tasks, num_tasks, accesses, num_accesses);
}

status starpullm_session_trace_clear(starpullm_session *session)
{
    CHECK_POINTERS(session);
    TRY(finish_trace(session));
    recorder_clear(session->recorder);
    if (session->instrument)
        instrument_clear(session->instrument);
    return STARPULLM_OK;
}

int32_t starpullm_session_handle_count(const starpullm_session *session)
{
    return session ? handles_count(session->handles) : 0;
}

status starpullm_session_handle_info(const starpullm_session *session, int32_t index,
                                     struct starpullm_handle_info *info)
{
    CHECK_POINTERS(session);
    CHECK_STRUCT(info);
    return handles_describe(session->handles, index, info);
}

status starpullm_session_share(const starpullm_session *session, struct starpullm_session_share *share)
{
    CHECK_POINTERS(session);
    CHECK_STRUCT(share);
    *share = (struct starpullm_session_share){.size = sizeof *share,
                                              .handles = handles_here(session->handles),
                                              .planned_written = session->plan.written,
                                              .planned_read = session->plan.read};
    for (int slot = 0; slot < session->slots; slot++) {
        share->submitted += session->iterations[slot].submitted;
        share->exchanged += session->iterations[slot].exchanged;
    }
    return STARPULLM_OK;
}

static status wait_for_instruments(starpullm_session *session)
{
    if (!session->instrument)
        return invalid_state("the session has no instruments, expected one created with some");
    TRY(check_not_held(session->hold));
    return starpullm_session_wait(session);
}

status starpullm_session_findings_size(starpullm_session *session, size_t *count)
{
    CHECK_POINTERS(session, count);
    TRY(wait_for_instruments(session));
    return instrument_findings(session->instrument, count);
}

status starpullm_session_instrument_counts(starpullm_session *session, struct starpullm_instrument_counts *counts)
{
    CHECK_POINTERS(session);
    CHECK_STRUCT(counts);
    TRY(wait_for_instruments(session));
    *counts = instrument_counts(session->instrument);
    return STARPULLM_OK;
}

status starpullm_session_findings_read(starpullm_session *session, struct starpullm_finding *findings, size_t count)
{
    CHECK_POINTERS(session, findings);
    size_t found;
    TRY(starpullm_session_findings_size(session, &found));
    if (count != found)
        return invalid_argument("findings: room for %zu, expected %zu", count, found);
    instrument_copy(session->instrument, findings);
    return STARPULLM_OK;
}
