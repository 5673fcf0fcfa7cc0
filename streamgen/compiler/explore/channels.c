/* Memory clients and channels; the laws are in tokens.py. */
#include <stdlib.h>

#include "channels.h"

/* The next command that a client takes; whether there is one. */
static int take_command(struct run *r, number c)
{
    const struct model *m = r->m;
    struct client *client = &r->clients[c];
    while (c != m->table && client->command < 0 && client->step < m->steps) {
        client->command = m->client_track[c * m->phases + m->step_phase[client->step]];
        if (client->command < 0)
            client->step++;
    }
    if (client->command < 0)
        return 0;
    client->earliest = 0;
    if (m->client_asks[c] >= 0) {
        struct line *l = &r->lines[m->client_asks[c]];
        cycles taken;
        if (l->pushed == l->popped)
            return 0;
        taken = l->ready[l->popped & (l->room - 1)];
        if (client->free > taken)
            taken = client->free;
        client->earliest = taken + CUT;
        tokens_pop(r, m->client_asks[c], taken);
    }
    if (c == m->table) {
        client->left = m->walk_beats[client->command++];
        client->offset = 0;
        return 1;
    }
    client->left = m->command_beats[client->command];
    client->offset = m->command_offset[client->command];
    client->last = m->command_last[client->command++];
    if (client->last) {
        client->command = -1;
        client->step++;
    }
    return 1;
}

/* Beats of the burst that comes next. */
static number burst_beats(const struct run *r, number c)
{
    const struct client *client = &r->clients[c];
    number most = r->m->client_burst[c] - client->offset % r->m->client_burst[c];
    return client->left < most ? client->left : most;
}

void channel_ask(struct run *r, number c)
{
    const struct model *m = r->m;
    struct client *client = &r->clients[c];
    const struct line *l = &r->lines[m->client_beats[c]];
    cycles last;
    r->channels[m->client_channel[c]].changed = 1;
    client->request = NEVER;
    while (!client->left) {
        if (client->earliest > client->free)
            client->free = client->earliest; /* of a command without beats */
        if (!take_command(r, c))
            return;
    }
    last = client->asked + burst_beats(r, c) - 1;
    if (m->client_writes[c]) {
        if (l->pushed <= last)
            return;
        client->request = l->ready[last & (l->room - 1)] + 1;
        if (client->free > client->request)
            client->request = client->free;
    } else {
        cycles issue = client->earliest > client->free ? client->earliest : client->free;
        cycles owed = m->client_under_way[c]
            ? client->asked + m->client_burst[c] - 1 - m->client_under_way[c] : -1; /* which must be there */
        if (owed >= 0) {
            cycles there;
            if (l->pushed <= owed)
                return;
            there = l->ready[owed & (l->room - 1)] - m->latency[m->client_beats[c]];
            if (there + 1 > issue)
                issue = there + 1;
        }
        last -= m->client_depth[c]; /* which must have left the FIFO */
        if (last >= 0) {
            if (l->popped <= last)
                return;
            if (l->freed[last % m->client_depth[c]] + 1 > issue)
                issue = l->freed[last % m->client_depth[c]] + 1;
        }
        client->request = issue + 1;
    }
}

static number grant(struct run *r, number c, cycles cycle, number *last)
{
    const struct model *m = r->m;
    struct client *client = &r->clients[c];
    number beats = burst_beats(r, c);
    client->asked += beats;
    client->left -= beats;
    client->offset += beats;
    *last = !client->left && client->last;
    client->free = m->client_writes[c] ? cycle + 1 : client->request + 1 > cycle ? client->request + 1 : cycle;
    client->earliest = 0;
    return beats;
}

static number choose(const struct run *r, const number *clients, number count, cycles cycle, number last)
{
    number found = -1;
    for (number k = 0; k < count; k++) {
        number at = (last + 1 + k) % count;
        if (r->clients[clients[at]].request <= cycle) {
            found = at;
            break;
        }
    }
    return found;
}

static cycles asking(const struct run *r, const number *clients, number count)
{
    cycles least = NEVER;
    for (number k = 0; k < count; k++)
        if (r->clients[clients[k]].request < least)
            least = r->clients[clients[k]].request;
    return least;
}

static void ready(const struct channel *c, cycles *read, cycles *write)
{
    *read = *write = NEVER;
    if (c->count_read) {
        cycles at = c->reads[c->first_read].at - 1;
        *read = at > c->last_read + 1 ? at : c->last_read + 1;
    }
    if (c->count_write) {
        cycles at = c->writes[c->first_write].at, data = c->data[c->first_data];
        *write = data > at ? data : at;
    }
}

static cycles service(const struct run *r, const struct channel *c)
{
    cycles read, write, first, missing, most = r->m->rate_beats + r->m->rate_cycles;
    ready(c, &read, &write);
    first = read < write ? read : write;
    if (first == NEVER)
        return NEVER;
    if (first <= c->now)
        first = c->now + 1;
    missing = c->credit + r->m->rate_beats * (first - c->now);
    missing = r->m->rate_cycles - (missing < most ? missing : most);
    return first + (missing > 0 ? (missing + r->m->rate_beats - 1) / r->m->rate_beats : 0);
}

static void grants(const struct run *r, const struct channel *c, cycles *read, cycles *write)
{
    *read = asking(r, c->readers, c->count_readers);
    if (*read < c->read_pins)
        *read = c->read_pins;
    if (c->count_read == OUTSTANDING)
        *read = NEVER;
    *write = asking(r, c->writers, c->count_writers);
    if (*write < c->write_pins)
        *write = c->write_pins;
    if (c->count_write == OUTSTANDING)
        *write = NEVER;
}

cycles channel_next(const struct run *r, struct channel *c)
{
    cycles read, write;
    if (c->changed) {
        c->next = service(r, c);
        grants(r, c, &read, &write);
        if (read < c->next)
            c->next = read;
        if (write < c->next)
            c->next = write;
        c->changed = 0;
    }
    return c->next;
}

static void serve(struct run *r, struct channel *c, cycles cycle)
{
    const struct model *m = r->m;
    cycles most = m->rate_beats + m->rate_cycles, times[2];
    number first = c->turn;
    c->credit += m->rate_beats * (cycle - c->now);
    if (c->credit > most)
        c->credit = most;
    c->now = cycle;
    ready(c, &times[0], &times[1]);
    for (number k = 0; k < 2; k++) {
        number writes = k ? 1 - first : first;
        struct burst *b = writes ? &c->writes[c->first_write] : &c->reads[c->first_read];
        if (c->credit < m->rate_cycles || times[writes] > cycle)
            continue;
        c->credit -= m->rate_cycles;
        c->turn = 1 - writes;
        b->beats--;
        if (writes) {
            c->first_data = (c->first_data + 1) & (c->room_data - 1);
            c->count_data--;
            tokens_pop(r, m->client_beats[b->client], cycle);
            if (!b->beats) {
                cycles done = cycle + m->rate_latency + RESPONSE;
                if (done > r->end)
                    r->end = done;
                c->write_end[c->ended_writes++ % OUTSTANDING] = cycle;
                if (b->last && m->client_done[b->client] >= 0)
                    tokens_push(r, m->client_done[b->client], done);
                c->first_write = (c->first_write + 1) % (OUTSTANDING + 1);
                c->count_write--;
            }
        } else {
            tokens_push(r, m->client_beats[b->client], cycle + DATA);
            c->last_read = cycle;
            if (m->client_under_way[b->client] && r->clients[b->client].request == NEVER)
                channel_ask(r, b->client);
            if (!b->beats) {
                c->read_end[c->ended_reads++ % OUTSTANDING] = cycle;
                c->first_read = (c->first_read + 1) % (OUTSTANDING + 1);
                c->count_read--;
            }
        }
    }
}

void channel_act(struct run *r, struct channel *c)
{
    cycles read, write, served = service(r, c);
    c->changed = 1;
    grants(r, c, &read, &write);
    if (served <= (read < write ? read : write)) {
        serve(r, c, served);
        return;
    }
    if (read <= write) {
        number at = choose(r, c->readers, c->count_readers, read, c->chosen_read), last;
        cycles accept = read + ADDRESS;
        struct burst *b = &c->reads[(c->first_read + c->count_read++) % (OUTSTANDING + 1)];
        if (c->granted_reads >= OUTSTANDING && c->read_end[c->granted_reads % OUTSTANDING] + 1 > accept)
            accept = c->read_end[c->granted_reads % OUTSTANDING] + 1;
        c->granted_reads++;
        c->chosen_read = at;
        b->client = c->readers[at];
        b->beats = grant(r, b->client, read, &last);
        b->at = accept + r->m->rate_latency;
        c->read_pins = accept;
        channel_ask(r, b->client);
    } else {
        number at = choose(r, c->writers, c->count_writers, write, c->chosen_write), last;
        cycles accept = write + ADDRESS, first = r->clients[c->writers[at]].asked;
        struct burst *b = &c->writes[(c->first_write + c->count_write++) % (OUTSTANDING + 1)];
        const struct line *l;
        if (c->granted_writes >= OUTSTANDING && c->write_end[c->granted_writes % OUTSTANDING] + 1 > accept)
            accept = c->write_end[c->granted_writes % OUTSTANDING] + 1;
        c->granted_writes++;
        c->chosen_write = at;
        b->client = c->writers[at];
        b->beats = grant(r, b->client, write, &last);
        b->last = last;
        b->at = accept;
        l = &r->lines[r->m->client_beats[b->client]];
        for (number k = 0; k < b->beats; k++) {
            cycles time = l->ready[(first + k) & (l->room - 1)] + WRITE_QUEUE;
            if (time < write + 1)
                time = write + 1;
            if (time < c->last_data)
                time = c->last_data;
            c->last_data = time + 1;
            if (c->count_data == c->room_data) {
                cycles *more = malloc(2 * sizeof(cycles) * c->room_data);
                for (number i = 0; i < c->count_data; i++)
                    more[i] = c->data[(c->first_data + i) & (c->room_data - 1)];
                free(c->data);
                c->data = more;
                c->first_data = 0;
                c->room_data *= 2;
            }
            c->data[(c->first_data + c->count_data++) & (c->room_data - 1)] = c->last_data;
        }
        c->write_pins = accept;
        channel_ask(r, b->client);
    }
}
