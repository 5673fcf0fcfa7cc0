/* A run, token by token; see tokens.py. Plain C, called with arrays that numpy owns.
 *
 * Parts go on as far as what they wait for is known: a time, once it is known, never changes, so their order
 * does not matter. When all of them wait, the channel with the earliest event does that one.
 */
#include <stdlib.h>

#include "channels.h"

/* A token at an end of a stream, in a step. */
static void moved(const struct run *r, number stream, number step, cycles time)
{
    if (stream < r->m->fifos && time > r->m->step_end[step])
        r->m->step_end[step] = time;
}

static void take_descriptors(struct run *r, number n)
{
    struct node *node = &r->nodes[n];
    while (node->left == 0 && node->taken < node->delivered) {
        number step = node->order[node->taken++];
        cycles start = node->offered[step];
        if (node->free > start)
            start = node->free;
        node->start[step] = start;
        node->left = node->intake;
        for (number p = r->m->node_part[n]; p < r->m->node_part[n + 1]; p++)
            wake(r, p);
        node->free = start + 1;
    }
}

static int begin(struct run *r, number p)
{
    const struct model *m = r->m;
    struct part *part = &r->parts[p];
    struct node *node = &r->nodes[m->part_node[p]];
    while (part->step < m->steps) {
        number track = m->part_track[p * m->phases + m->step_phase[part->step]];
        if (track < 0) {
            part->step++;
            continue;
        }
        if (node->start[part->step] < 0)
            return 0;
        part->track = &m->track[track];
        part->group = part->marks = 0;
        part->mark = part->track->mark ? part->track->mark[0] : -1;
        part->late = part->sent + 1 - part->track->clock[0]; /* behind its last move */
        if (node->start[part->step] > part->late)
            part->late = node->start[part->step];
        part->started = 1;
        part->base = -1;
        return 1;
    }
    return 0;
}

/* Send what a group sends, to others or, when all of that has gone, to other parts of the kernel; whether
 * something must wait. */
static int send(struct run *r, struct part *part, number g, int inside)
{
    const struct model *m = r->m;
    const struct track *t = part->track;
    number first = t->first[g], stop = t->first[g + 1], left = 0;
    cycles begin = inside ? part->sent : part->base;
    for (number i = stop - 1; i >= first && (t->event[i] & 1); i--) {
        number stream = t->stream[t->event[i] >> 1];
        uint64_t bit = (uint64_t)1 << (stop - 1 - i);
        cycles time;
        if ((part->gone & bit) || inside != (stream >= m->fifos && m->target[stream] >= 0))
            continue;
        if ((time = room(r, stream)) == NEVER) {
            left = 1;
            continue;
        }
        if (time < begin)
            time = begin;
        if (time > part->sent)
            part->sent = time;
        part->gone |= bit;
        moved(r, stream, part->step, time);
        tokens_push(r, stream, time);
    }
    return left;
}

/* A part has come to a mark. */
static void note(struct run *r, number p)
{
    struct part *part = &r->parts[p];
    r->m->marked[((int64_t)p * r->m->steps + part->step) * MARKS + part->marks] = part->sent;
    part->mark = ++part->marks < MARKS ? part->track->mark[part->marks] : -1;
}

static void advance(struct run *r, number p)
{
    const struct model *m = r->m;
    struct part *part = &r->parts[p];
    part->awaits = DESCRIPTOR;
    while (part->started || begin(r, p)) {
        const struct track *t = part->track;
        number g = part->group, first = t->first[g], stop = t->first[g + 1];
        if (part->base < 0) {
            cycles base = t->clock[g] + part->late;
            number i = first + part->there;
            if (part->there && part->known > base)
                base = part->known;
            for (; i < stop && !(t->event[i] & 1); i++) {
                number stream = t->stream[t->event[i] >> 1];
                const struct line *l = &r->lines[stream];
                cycles ready;
                if (l->pushed == l->popped) {
                    part->awaits = stream;
                    part->there = i - first;
                    part->known = base;
                    return;
                }
                ready = l->ready[l->popped & (l->room - 1)];
                if (ready > base)
                    base = ready;
            }
            part->base = part->sent = base;
            part->there = 0;
            part->gone = 0;
        }
        if (send(r, part, g, 0) || send(r, part, g, 1)) {
            part->awaits = ROOM;
            return;
        }
        for (number i = first; i < stop && !(t->event[i] & 1); i++) {
            moved(r, t->stream[t->event[i] >> 1], part->step, part->sent);
            tokens_pop(r, t->stream[t->event[i] >> 1], part->sent);
        }
        part->late = part->sent - t->clock[g];
        part->base = -1;
        if (++part->group == part->mark)
            note(r, p);
        if (part->group == t->groups) {
            struct node *node = &r->nodes[m->part_node[p]];
            cycles behind = part->sent + 1;
            part->started = 0;
            part->step++;
            if (m->part_intake[p]) {
                if (behind > node->free)
                    node->free = behind;
                if (--node->left == 0)
                    take_descriptors(r, m->part_node[p]);
            }
        }
    }
}

/* A descriptor to its node, behind the last of its slots; whether there is room for it. */
static int deliver(struct run *r, number target)
{
    const struct model *m = r->m;
    struct node *node = &r->nodes[target];
    cycles at = r->cycle - 1 + m->way;
    if (node->delivered >= m->deepest) {
        number before = node->delivered - m->deepest;
        if (node->taken <= before)
            return 0;
        if (node->start[node->order[before]] + 1 > at)
            at = node->start[node->order[before]] + 1;
    }
    r->cycle = at - m->way + 1;
    node->offered[node->order[node->delivered++]] = at;
    take_descriptors(r, target);
    return 1;
}

/* The sequencer: beats of the table become descriptors at the nodes. */
static void sequence(struct run *r)
{
    const struct model *m = r->m;
    number stream, asks;
    struct line *l;
    if (m->table < 0) /* every descriptor is there from the beginning on */
        return;
    stream = m->client_beats[m->table];
    asks = m->client_asks[m->table];
    l = &r->lines[stream];
    if (r->asked == 0) {
        tokens_push(r, asks, 0);
        r->asked = 1;
        r->slot = SLOTS;
    }
    if (r->first < 0) {
        if (l->pushed == l->popped)
            return;
        r->first = l->ready[l->popped & (l->room - 1)] + WALK;
        tokens_pop(r, stream, r->first - WALK);
        r->cycle = r->first;
    }
    for (;;) {
        while (r->asked < m->walks + 1 && r->asked <= r->walk + AHEAD) {
            cycles at = r->first;
            if (r->asked > AHEAD && r->walk_end[r->asked - AHEAD - 1] > at)
                at = r->walk_end[r->asked - AHEAD - 1];
            tokens_push(r, asks, at);
            r->asked++;
        }
        while (r->walk && r->dropped < m->dropped) {
            if (l->pushed == l->popped)
                return;
            tokens_pop(r, stream, l->ready[l->popped & (l->room - 1)]);
            r->dropped++;
        }
        if (r->walk == m->walks)
            return;
        {
            number target = m->item_node[r->item], slots = m->item_slots[r->item];
            while (r->passed < slots) {
                if (r->slot == SLOTS) {
                    cycles taken;
                    if (l->pushed == l->popped)
                        return;
                    taken = l->ready[l->popped & (l->room - 1)];
                    if (r->cycle - SLOT > taken)
                        taken = r->cycle - SLOT;
                    if (r->first > taken)
                        taken = r->first;
                    tokens_pop(r, stream, taken);
                    if (taken + SLOT > r->cycle)
                        r->cycle = taken + SLOT;
                    r->slot = 0;
                }
                r->slot++;
                r->cycle++;
                r->passed++;
            }
            if (target >= 0 && !deliver(r, target))
                return; /* the descriptor that must leave first has not been taken yet */
            r->passed = 0;
            if (++r->item == m->walk_item[r->walk + 1]) {
                r->walk_end[r->walk++] = r->cycle;
                r->slot = SLOTS;
            }
        }
    }
}

static void *zeros(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

/* Cycles until the last response, or token; or -1 - the number of parts that are not through when nothing moves. */
cycles tokens_run(const struct model *m)
{
    struct run run = {.m = m, .first = -1}, *r = &run;
    number waiting = 0;
    r->lines = zeros(m->streams, sizeof(struct line));
    r->parts = zeros(m->parts, sizeof(struct part));
    r->nodes = zeros(m->nodes, sizeof(struct node));
    r->clients = zeros(m->clients, sizeof(struct client));
    r->channels = zeros(m->channels, sizeof(struct channel));
    r->todo = zeros(m->parts + 1, sizeof(number));
    r->asking = zeros(m->clients + 1, sizeof(number));
    r->walk_end = zeros(m->walks + 1, sizeof(cycles));
    for (number s = 0; s < m->streams; s++) {
        r->lines[s].room = 16;
        r->lines[s].ready = zeros(16, sizeof(cycles));
        r->lines[s].freed = zeros(m->depth[s], sizeof(cycles));
    }
    for (number n = 0; n < m->nodes; n++) {
        r->nodes[n].start = zeros(m->steps, sizeof(cycles));
        r->nodes[n].offered = zeros(m->steps, sizeof(cycles));
        r->nodes[n].order = zeros(m->steps, sizeof(number));
        for (number s = 0; s < m->steps; s++)
            r->nodes[n].start[s] = -1;
    }
    for (number p = 0; p < m->parts; p++) {
        struct node *node = &r->nodes[m->part_node[p]];
        node->intake += m->part_intake[p];
        if (!node->count)
            for (number s = 0; s < m->steps; s++)
                if (m->part_track[p * m->phases + m->step_phase[s]] >= 0)
                    node->order[node->count++] = s;
        r->parts[p].base = r->parts[p].sent = -1;
        wake(r, p);
    }
    for (number n = 0; n < m->nodes && m->table < 0; n++) {
        r->nodes[n].delivered = r->nodes[n].count;
        take_descriptors(r, n);
    }
    for (number c = 0; c < m->channels; c++) {
        struct channel *channel = &r->channels[c];
        channel->readers = zeros(m->clients, sizeof(number));
        channel->writers = zeros(m->clients, sizeof(number));
        channel->room_data = 64;
        channel->data = zeros(64, sizeof(cycles));
        channel->credit = m->rate_beats + m->rate_cycles;
        channel->now = channel->last_read = channel->last_data = -1;
        channel->chosen_read = channel->chosen_write = -1;
        channel->changed = 1;
    }
    for (number c = 0; c < m->clients; c++) {
        struct channel *channel = &r->channels[m->client_channel[c]];
        r->clients[c].command = c == m->table ? 0 : -1;
        r->clients[c].request = NEVER;
        if (m->client_writes[c])
            channel->writers[channel->count_writers++] = c;
        else
            channel->readers[channel->count_readers++] = c;
        if (m->client_under_way[c]) { /* these beats are looked at when others have come behind them */
            struct line *l = &r->lines[m->client_beats[c]];
            while (l->room < m->client_depth[c])
                l->room *= 2;
            free(l->ready);
            l->ready = zeros(l->room, sizeof(cycles));
        }
        wake_client(r, c);
    }
    for (;;) {
        cycles least = NEVER;
        number best = -1;
        do {
            sequence(r);
            while (r->count) {
                number p = r->todo[--r->count];
                r->parts[p].queued = 0;
                advance(r, p);
            }
            while (r->askers) {
                number c = r->asking[--r->askers];
                r->clients[c].queued = 0;
                channel_ask(r, c);
            }
        } while (r->count);
        for (number c = 0; c < m->channels; c++) {
            cycles at = channel_next(r, &r->channels[c]);
            if (at < least) {
                least = at;
                best = c;
            }
        }
        if (best < 0)
            break;
        channel_act(r, &r->channels[best]);
    }
    for (number p = 0; p < m->parts; p++) {
        begin(r, p);
        waiting += r->parts[p].step < m->steps;
        if (r->parts[p].sent > r->end)
            r->end = r->parts[p].sent;
    }
    for (number s = 0; s < m->streams; s++) {
        free(r->lines[s].ready);
        free(r->lines[s].freed);
    }
    for (number n = 0; n < m->nodes; n++) {
        free(r->nodes[n].start);
        free(r->nodes[n].offered);
        free(r->nodes[n].order);
    }
    for (number c = 0; c < m->channels; c++) {
        free(r->channels[c].readers);
        free(r->channels[c].writers);
        free(r->channels[c].data);
    }
    free(r->lines);
    free(r->parts);
    free(r->nodes);
    free(r->clients);
    free(r->channels);
    free(r->todo);
    free(r->asking);
    free(r->walk_end);
    return waiting ? -1 - waiting : r->end;
}
