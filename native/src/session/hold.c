/* Holds back the tasks of the next submissions, so that StarPU can be asked which of them wait for which. */
#include <stdlib.h>

#include "session/session.h"

status starpullm_session_hold(starpullm_session *session)
{
    CHECK_POINTER(session);
    if (!session->recorder)
        return fail(STARPULLM_INVALID_STATE, "hold: the session isn't traced, expected one created with trace");
    if (session->placement.ranks > 1)
        return fail(STARPULLM_INVALID_STATE, "hold: found %d ranks, expected one: transfers aren't tasks",
                    session->placement.ranks);
    if (session->instrument && (instrument_audit(session->instrument) || instrument_poisons(session->instrument)))
        return fail(STARPULLM_INVALID_STATE, "hold: the session is audited or poisoned, expected neither: both wait "
                                             "for all tasks before a submission");
    if (session->hold)
        return fail(STARPULLM_INVALID_STATE, "hold: the session holds its tasks already, expected a release");
    TRY(starpullm_session_wait(session));
    TRY(hold_create(&session->hold));
    session->first_held = session->submitted;
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].hold = session->hold;
    return STARPULLM_OK;
}

status starpullm_session_release(starpullm_session *session, size_t *num_edges)
{
    CHECK_POINTER(session);
    CHECK_POINTER(num_edges);
    if (!session->hold)
        return fail(STARPULLM_INVALID_STATE, "release: the session holds no tasks, expected a hold before");
    free(session->edges);
    session->edges = NULL;
    session->num_edges = 0;
    const status asked = hold_edges(session->hold, &session->edges, &session->num_edges);
    if (asked != STARPULLM_OK) {
        session_wait_all(session);
        return asked;
    }
    *num_edges = session->num_edges;
    session_let_go(session);
    return STARPULLM_OK;
}

status starpullm_session_runtime_edges(starpullm_session *session, int64_t *edges, size_t num_edges)
{
    CHECK_POINTER(session);
    CHECK_POINTER(edges);
    if (num_edges != session->num_edges)
        return fail(STARPULLM_INVALID_ARGUMENT, "edges: room for %zu, expected %zu", num_edges, session->num_edges);
    for (size_t i = 0; i < num_edges; i++) {
        edges[2 * i] = session->edges[i].before;
        edges[2 * i + 1] = session->edges[i].after;
    }
    return STARPULLM_OK;
}
