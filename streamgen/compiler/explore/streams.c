/* The streams of a run: tokens into them and out of them, and who is told. */
#include <stdlib.h>

#include "streams.h"

void wake(struct run *r, number p)
{
    if (!r->parts[p].queued) {
        r->parts[p].queued = 1;
        r->todo[r->count++] = p;
    }
}

void wake_client(struct run *r, number c)
{
    if (!r->clients[c].queued) {
        r->clients[c].queued = 1;
        r->asking[r->askers++] = c;
    }
}

/* Something has happened to a stream: who stands at an end of it looks again, if that is what it waits for. */
static void tell(struct run *r, number end, number what)
{
    if (end == OUTSIDE)
        return;
    if (end < 0)
        wake_client(r, -1 - end);
    else if (r->parts[end].awaits == what)
        wake(r, end);
}

void tokens_push(struct run *r, number stream, cycles time)
{
    struct line *l = &r->lines[stream];
    if (l->pushed - l->popped == l->room) {
        cycles *more = malloc(2 * sizeof(cycles) * l->room);
        for (cycles k = l->popped; k < l->pushed; k++)
            more[k & (2 * l->room - 1)] = l->ready[k & (l->room - 1)];
        free(l->ready);
        l->ready = more;
        l->room *= 2;
    }
    if (r->m->first_token && stream < r->m->fifos)
        r->m->sent[r->m->first_token[stream] + l->pushed] = time;
    l->ready[l->pushed++ & (l->room - 1)] = time + r->m->latency[stream];
    if (++l->next_pushed >= r->m->depth[stream])
        l->next_pushed = 0;
    tell(r, r->m->target[stream], stream);
}

void tokens_pop(struct run *r, number stream, cycles time)
{
    struct line *l = &r->lines[stream];
    number depth = r->m->depth[stream];
    if (depth) {
        l->freed[l->next_popped] = time;
        if (++l->next_popped == depth)
            l->next_popped = 0;
    }
    if (r->m->first_token && stream < r->m->fifos)
        r->m->taken[r->m->first_token[stream] + l->popped] = time;
    l->popped++;
    tell(r, r->m->source[stream], ROOM);
}

cycles room(const struct run *r, number stream)
{
    const struct line *l = &r->lines[stream];
    number depth = r->m->depth[stream];
    if (!depth || l->pushed < depth)
        return 0;
    if (l->popped <= l->pushed - depth)
        return NEVER;
    return l->freed[l->next_pushed] + r->m->back[stream] + (depth > 1 || r->m->back[stream]);
}
