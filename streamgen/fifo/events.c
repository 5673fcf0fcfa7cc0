/* Relaxation of the equations in events.py. Plain C, called with arrays that numpy owns.
 *
 * A group is a cycle of a node's clock in which something is due; groups of a node are neighbours. Events
 * of a group are inputs first, then outputs to other nodes, then those inside a kernel; event = 2 * stream
 * + (is output), token = index over all streams. `times` holds the production of every token, then the
 * consumption, then the lateness of every group.
 *
 * What is touched is done in the order of time, as in a simulation: the node whose time is least goes on until
 * another one's is less. So most is done once. A node at a time, from end to end, tokens that go round through
 * FIFOs of few places would be done a round at a time, all of a node each.
 */
#include <stdint.h>

typedef int32_t number;

enum { CHECK = 1000, /* groups looked at before the first search for a circle of waits */
       AHEAD = 64 }; /* cycles that a node may be ahead of others before these go on */

struct run {
    number nodes, streams, tokens, groups;
    const number *node_group;   /* nodes + 1: first group of each node */
    const number *cycle;        /* groups */
    const number *group_event;  /* groups + 1 */
    const number *event;
    const number *event_token;
    const number *stream_token; /* streams + 1: first token of each stream */
    const number *inside;       /* streams: whether between parts of one kernel */
    const number *source, *target; /* streams: node, or -1 */
    const number *sent_group, *taken_group; /* tokens */
    const number *latency, *way;
    number *depth;              /* streams; 0: no limit */
    number *times;              /* 2 * tokens + groups */
    number *latest;             /* 2 * tokens: production, consumption */
    number *needed;             /* tokens: when they must be ready for the reader */
    const number *promise;      /* groups: when they must be done */
    number *base;               /* groups: latest begin */
    number *queue;              /* nodes: those touched, a heap: the least time first, of equal ones the first */
    number *at;                 /* nodes: 1 + place in the queue, 0 outside */
    number *time;               /* nodes: when there is something to look at again; backwards the negative */
    number *first, *last;       /* nodes: groups to look at again */
    number *log, *old;          /* 2 * tokens + groups: what a trial changed */
    number *stamp;
    number logged;
    number trial;
    number waiting;
};

/* Cycles from a token taken to its place free for another one. */
static number freed(const struct run *r, number k)
{
    return r->way[k] + (r->depth[k] > 1 || r->way[k]);
}

static int before(const struct run *r, number a, number b)
{
    return r->time[a] < r->time[b] || (r->time[a] == r->time[b] && a < b);
}

static void put(struct run *r, number place, number node)
{
    r->queue[place] = node;
    r->at[node] = place + 1;
}

static void up(struct run *r, number place, number node)
{
    for (; place && before(r, node, r->queue[(place - 1) / 2]); place = (place - 1) / 2)
        put(r, place, r->queue[(place - 1) / 2]);
    put(r, place, node);
}

static void touch(struct run *r, number node, number from, number to, number time)
{
    if (!r->at[node]) {
        r->first[node] = from;
        r->last[node] = to;
        r->time[node] = time;
        up(r, r->waiting++, node);
        return;
    }
    if (from < r->first[node])
        r->first[node] = from;
    if (to > r->last[node])
        r->last[node] = to;
    if (time < r->time[node]) {
        r->time[node] = time;
        up(r, r->at[node] - 1, node);
    }
}

/* The touched node whose time is least. */
static number next(struct run *r)
{
    number found = r->queue[0], place = 0, below;
    r->at[found] = 0;
    if (--r->waiting) {
        number node = r->queue[r->waiting];
        while ((below = 2 * place + 1) < r->waiting) {
            if (below + 1 < r->waiting && before(r, r->queue[below + 1], r->queue[below]))
                below++;
            if (before(r, node, r->queue[below]))
                break;
            put(r, place, r->queue[below]);
            place = below;
        }
        put(r, place, node);
    }
    return found;
}

static void clear(struct run *r)
{
    while (r->waiting)
        r->at[r->queue[--r->waiting]] = 0;
}

/* Whether others come before a node that has come to this time. */
static int behind_others(const struct run *r, number time)
{
    return r->waiting && (int64_t)time > (int64_t)r->time[r->queue[0]] + AHEAD;
}

void run_touch(struct run *r, number node)
{
    if (r->node_group[node] < r->node_group[node + 1])
        touch(r, node, r->node_group[node], r->node_group[node + 1] - 1, INT32_MIN);
}

static void change(struct run *r, number index, number value)
{
    if (r->stamp[index] != r->trial) {
        r->stamp[index] = r->trial;
        r->log[r->logged] = index;
        r->old[r->logged++] = r->times[index];
    }
    r->times[index] = value;
}

void run_revert(struct run *r)
{
    while (r->logged) {
        r->logged--;
        r->times[r->log[r->logged]] = r->old[r->logged];
    }
    clear(r);
}

/* What a time rests on: index of a production, or tokens + index of a group that is done, both ways; -1 where
 * nothing else made it wait. delay: cycles that are at least between the two. */
static number cause(const struct run *r, number index, number *delay)
{
    const number *sent = r->times, *taken = sent + r->tokens, *late = taken + r->tokens;
    number g = index < r->tokens ? r->sent_group[index] : index - r->tokens;
    number e = r->group_event[g], stop = r->group_event[g + 1], time, k = r->event[e] >> 1;
    number node = r->event[e] & 1 ? r->source[k] : r->target[k];
    *delay = 0;
    if (index < r->tokens) {
        time = sent[index];
        for (number i = e; i < stop; i++) {
            number from = index - r->depth[k = r->event[i] >> 1];
            if (!(r->event[i] & 1) || r->event_token[i] != index)
                continue;
            if (r->depth[k] && r->target[k] >= 0 && from >= r->stream_token[k]) {
                *delay = freed(r, k);
                if (taken[from] + *delay >= time)
                    return r->tokens + r->taken_group[from];
            }
            *delay = 0;
            for (number j = e; j < stop && r->inside[k]; j++)
                if ((r->event[j] & 1) && !r->inside[r->event[j] >> 1] && sent[r->event_token[j]] >= time)
                    return r->event_token[j];
        }
    } else {
        time = r->cycle[g] + late[g];
        for (number i = stop - 1; i >= e && (r->event[i] & 1); i--)
            if (sent[r->event_token[i]] >= time)
                return r->event_token[i];
    }
    for (number i = e; i < stop && !(r->event[i] & 1); i++) {
        k = r->event[i] >> 1;
        *delay = r->latency[k];
        if (r->source[k] >= 0 && sent[r->event_token[i]] + *delay >= time)
            return r->event_token[i];
    }
    if (g > r->node_group[node] && r->cycle[g] + late[g - 1] >= time) {
        *delay = r->cycle[g] - r->cycle[g - 1];
        return r->tokens + g - 1;
    }
    return -1;
}

/* Whether a time is seen, in so many steps, to rest on itself some cycles later: then there is no end to it. */
static int circles(const struct run *r, number index, number steps)
{
    number at = index, length = 0, most = 1, cycles = 0, delay;
    while (steps--) {
        if ((at = cause(r, at, &delay)) < 0)
            return 0;
        cycles += delay;
        if (at == index)
            return cycles > 0;
        if (++length == most) {
            index = at;
            most *= 2;
            length = cycles = 0;
        }
    }
    return 0;
}

/* Delay what must wait in the touched nodes and in all that follows from it. 0: some token would move after
 * its latest time, or any at `limit` or later; then nothing is changed. */
int run_settle(struct run *r, number limit)
{
    number *sent = r->times, *taken = sent + r->tokens, *late = taken + r->tokens;
    const number *latest_sent = r->latest, *latest_taken = latest_sent + r->tokens;
    number visits = 0, check = CHECK;
    r->logged = 0;
    r->trial++;
    while (r->waiting) {
        number node = next(r);
        number g = r->first[node], last = r->last[node], end = r->node_group[node + 1];
        number behind = g > r->node_group[node] ? late[g - 1] : 0;
        for (; g < end; g++) {
            number begin = r->cycle[g] + behind, e = r->group_event[g], stop = r->group_event[g + 1];
            number done, gone; /* gone: all that goes to others */
            for (number i = e; i < stop && !(r->event[i] & 1); i++) {
                number k = r->event[i] >> 1;
                number ready = sent[r->event_token[i]] + r->latency[k];
                if (r->source[k] >= 0 && ready > begin)
                    begin = ready;
            }
            done = gone = begin;
            for (number i = e; i < stop; i++) {
                number k = r->event[i] >> 1;
                number token = r->event_token[i], before = token - r->depth[k];
                number time = r->inside[k] ? gone : begin;
                if (!(r->event[i] & 1))
                    continue;
                if (r->depth[k] && r->target[k] >= 0 && before >= r->stream_token[k]) {
                    number room = taken[before] + freed(r, k);
                    if (room > time)
                        time = room;
                }
                if (time > done)
                    done = time;
                if (time > gone && !r->inside[k])
                    gone = time;
                if (time != sent[token]) {
                    if (time > latest_sent[token])
                        goto fail;
                    change(r, token, time);
                    if (r->target[k] >= 0)
                        touch(r, r->target[k], r->taken_group[token], r->taken_group[token], time);
                }
            }
            if (done >= limit)
                goto fail;
            for (number i = e; i < stop && !(r->event[i] & 1); i++) {
                number k = r->event[i] >> 1;
                number token = r->event_token[i], after = token + r->depth[k];
                if (done != taken[token]) {
                    if (done > latest_taken[token])
                        goto fail;
                    change(r, r->tokens + token, done);
                    if (r->source[k] >= 0 && r->depth[k] && after < r->stream_token[k + 1])
                        touch(r, r->source[k], r->sent_group[after], r->sent_group[after], done);
                }
            }
            behind = done - r->cycle[g];
            visits++;
            if (behind != late[g]) {
                change(r, 2 * r->tokens + g, behind);
                if (visits >= check) {
                    if (circles(r, r->tokens + g, visits / 2))
                        goto fail;
                    check = 2 * visits;
                }
            } else if (g >= last)
                break;
            if (g + 1 < end && behind_others(r, done)) {
                touch(r, node, g + 1, last > g ? last : g + 1, done);
                break;
            }
        }
    }
    return 1;
fail:
    run_revert(r);
    return 0;
}

/* Bring forward the latest times of the touched nodes, and of all that follows from it. */
void run_postpone(struct run *r)
{
    number *latest_sent = r->latest, *latest_taken = latest_sent + r->tokens;
    while (r->waiting) {
        number node = next(r);
        number g = r->last[node], first = r->first[node], begin = r->node_group[node];
        number end = r->node_group[node + 1];
        for (; g >= begin; g--) {
            number e = r->group_event[g], stop = r->group_event[g + 1], done = r->promise[g];
            number base, gone; /* gone: when all that goes to others must be */
            if (g + 1 < end && r->base[g + 1] - r->cycle[g + 1] + r->cycle[g] < done)
                done = r->base[g + 1] - r->cycle[g + 1] + r->cycle[g];
            for (number i = e; i < stop && !(r->event[i] & 1); i++) {
                number k = r->event[i] >> 1;
                number after = r->event_token[i] + r->depth[k];
                if (r->depth[k] && r->source[k] >= 0 && after < r->stream_token[k + 1]) {
                    number emptied = latest_sent[after] - freed(r, k);
                    if (emptied < done)
                        done = emptied;
                }
            }
            base = gone = done;
            for (number i = stop - 1; i >= e && (r->event[i] & 1); i--) {
                number k = r->event[i] >> 1;
                number token = r->event_token[i], time = r->inside[k] ? done : gone;
                number before = token - r->depth[k];
                if (r->target[k] >= 0 && r->needed[token] - r->latency[k] < time)
                    time = r->needed[token] - r->latency[k];
                if (time < base)
                    base = time;
                if (time < gone && r->inside[k])
                    gone = time;
                if (time != latest_sent[token]) {
                    latest_sent[token] = time;
                    if (r->target[k] >= 0 && r->depth[k] && before >= r->stream_token[k])
                        touch(r, r->target[k], r->taken_group[before], r->taken_group[before], -time);
                }
            }
            for (number i = e; i < stop && !(r->event[i] & 1); i++) {
                number k = r->event[i] >> 1;
                number token = r->event_token[i];
                latest_taken[token] = done;
                if (r->needed[token] != base) {
                    r->needed[token] = base;
                    if (r->source[k] >= 0)
                        touch(r, r->source[k], r->sent_group[token], r->sent_group[token], -base);
                }
            }
            if (r->base[g] != base)
                r->base[g] = base;
            else if (g <= first)
                break;
            if (g > begin && behind_others(r, -base)) {
                touch(r, node, first < g ? first : g - 1, g - 1, -base);
                break;
            }
        }
    }
}

/* No smaller depth of FIFO k meets the latest times, all else equal. */
number run_least_depth(const struct run *r, number k)
{
    const number *sent = r->latest, *taken = r->times + r->tokens;
    number first = r->stream_token[k], end = r->stream_token[k + 1], gone = first, least = 2, single = !r->way[k];
    for (number token = first; token < end; token++) {
        if (token > first && taken[token - 1] > sent[token])
            single = 0;
        while (gone < end && taken[gone] + r->way[k] < sent[token])
            gone++;
        if (token + 1 - gone > least)
            least = token + 1 - gone;
    }
    return single ? 1 : least;
}
