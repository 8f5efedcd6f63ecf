/* Waits for what was submitted to a session. Tasks that are held back are let go first, or the wait would never end. */
#include "session/session.h"

void session_let_go(struct starpullm_session *session)
{
    struct hold *hold = session->hold;
    session->hold = NULL;
    for (int slot = 0; slot < session->slots_ready; slot++)
        session->iterations[slot].hold = NULL;
    hold_release(hold);
}

void session_wait_all(struct starpullm_session *session)
{
    session_let_go(session);
    for (int slot = 0; slot < session->slots_ready; slot++)
        iteration_wait(&session->iterations[slot]);
}

void session_wait_if_audited(struct starpullm_session *session)
{
    if (session->instrument && instrument_audit(session->instrument))
        session_wait_all(session);
}

status session_check_not_held(const struct starpullm_session *session)
{
    if (!session->hold)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_STATE, "the session holds its tasks, expected a release first");
}

status starpullm_session_wait(starpullm_session *session)
{
    CHECK_POINTER(session);
    session_wait_all(session);
    return failure_check(&session->failure);
}
