/* Hands out what was recorded of a session's tasks: the trace, the handles that it names, and the instruments'
 * findings. */
#include "trace/record.h"

#include <stdlib.h>

#include "session/session.h"

static status finish_trace(struct starpullm_session *session)
{
    if (!session->recorder)
        return invalid_state("the session isn't traced, expected one created with trace");
    TRY(check_not_held(session->hold));
    return starpullm_session_wait(session);
}

status trace_create(const struct recorder *recorder, const struct handles *handles, struct starpullm_trace **trace)
{
    struct starpullm_trace *created = calloc(1, sizeof *created);
    if (!created)
        return out_of_memory("a trace");
    created->num_handles = (size_t)handles_count(handles);
    created->handles = calloc(created->num_handles, sizeof *created->handles);
    status code = created->handles ? recorder_copy(recorder, created)
                                   : out_of_memory("a trace's %zu handles", created->num_handles);
    for (size_t i = 0; code == STARPULLM_OK && i < created->num_handles; i++)
        handles_describe(handles, (int)i, &created->handles[i]);
    if (code == STARPULLM_OK)
        *trace = created;
    else
        starpullm_trace_destroy(&created);
    return code;
}

void starpullm_trace_destroy(struct starpullm_trace **trace)
{
    if (!trace || !*trace)
        return;
    free((*trace)->tasks);
    free((*trace)->accesses);
    free((*trace)->handles);
    free(*trace);
    *trace = NULL;
}

status starpullm_session_trace(starpullm_session *session, struct starpullm_trace **trace)
{
    CHECK_POINTERS(session, trace);
    TRY(finish_trace(session));
    return trace_create(session->recorder, session->handles, trace);
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
