/* A run: what runs, as tokens.py gives it, where everything stands, and its streams. */
#ifndef STREAMS_H
#define STREAMS_H

#include <stdint.h>

typedef int32_t number;
typedef int64_t cycles;

#define NEVER ((cycles)1 << 60)
#define OUTSIDE INT32_MIN

enum {
    OUTSTANDING = 32, /* bursts of each kind that wait at the memory */
    ADDRESS = 1,      /* cycles from an address granted to the pins */
    DATA = 2,         /* cycles from a beat served to the client's FIFO: the pins, the master */
    WRITE_QUEUE = 3,  /* cycles from a beat in a write client's FIFO to its head */
    RESPONSE = 1,     /* cycles from a response at the pins to the client */
    CUT = 2,          /* cycles from a command taken to its first burst asked for, and from burst to burst */
    SLOTS = 4,        /* of a beat of the table */
    SLOT = 2,         /* cycles from a beat of the table taken to its first slot */
    WALK = 2,         /* cycles from the directory to the first walk */
    AHEAD = 2,        /* walks of the table that are asked for ahead */
    MARKS = 4,        /* as periods.py has it */
    ROOM = -1,        /* what a part waits for that is no stream: */
    DESCRIPTOR = -2,
};

struct track { /* what a part does in a phase; parts that are alike have the same arrays but for `stream` */
    const number *clock, *first; /* groups, groups + 1: the first event of each */
    const uint16_t *event;       /* 2 * (place in stream) + (is output); inputs of a group first */
    const number *stream;
    int64_t groups;
    const number *mark;        /* MARKS numbers of groups done, rising, or null */
};

struct model { /* as tokens.py gives it */
    number parts, streams, nodes, phases, steps, clients, channels, items, walks;
    number fifos; /* streams that are edges; those behind them are inside of kernels, or of clients */
    const number *step_phase;                     /* steps: the phase of each */
    const number *node_part;                      /* nodes + 1: first part of each */
    const number *part_node, *part_intake;        /* parts */
    const number *part_track;                     /* parts x phases: -1 where it rests */
    const struct track *track;                    /* tracks */
    const number *source, *target;                /* streams: part, -1 - client, or OUTSIDE */
    const number *depth, *latency, *back;         /* streams; depth 0: no limit; back: way of a place that is free */
    const number *client_channel, *client_writes, *client_burst, *client_depth;
    const number *client_under_way;               /* beats that memory owes at most, or 0 */
    const number *client_asks, *client_beats, *client_done; /* streams, or -1 */
    const number *client_track;                   /* clients x phases: first command, or -1 */
    const number *command_beats, *command_offset, *command_last; /* of an execution */
    const number *item_node, *item_slots;         /* descriptors in the order in which they are sent; node -1:
                                                     of one that another stands for */
    const number *walk_item, *walk_beats;         /* walks + 1: first item; beats of the chunk and of each walk */
    number table, deepest, way, dropped;          /* client of the table; descriptors that wait at a node, cycles
                                                     to it; beats of the chunk behind the first walk */
    number rate_beats, rate_cycles, rate_latency;
    cycles *step_end;                             /* result: of each step, its last token at an end of a fifo */
    const number *first_token;                    /* fifos, or null */
    cycles *sent, *taken;                         /* result: of each token of these, where that is given */
    cycles *marked;                               /* result: parts x steps x MARKS: when a part came to each, or null */
};

struct line { /* a stream */
    cycles *ready, *freed;
    cycles pushed, popped;
    number room; /* of `ready`, a power of two */
    number next_pushed, next_popped; /* places in `freed`: counts modulo the depth */
};

struct part {
    const struct track *track; /* once it is started */
    number step, group;
    number started, queued;
    number awaits; /* a stream for its next token; ROOM in any that it sends to; or DESCRIPTOR */
    number there;  /* inputs of the group whose tokens are there, and since when */
    cycles known;
    number marks; /* that it has come to */
    int64_t mark; /* groups at the next one, or -1 */
    uint64_t gone; /* which outputs of the group, at most 64, have been sent */
    cycles late, base, sent;
};

struct node {
    number intake, left; /* parts that take in, and those of them that are still at work */
    cycles free;
    cycles *start;             /* by step */
    cycles *offered;           /* by step, -1: not delivered */
    number *order;             /* steps in which it works */
    number delivered, taken, count;
};

struct client {
    number step, command, last; /* command: index, -1: none begun */
    number left, offset, queued;
    cycles asked, free, earliest, request;
};

struct burst { number client, beats, last; cycles at; };

struct channel {
    struct burst reads[OUTSTANDING + 1], writes[OUTSTANDING + 1];
    number first_read, count_read, first_write, count_write;
    cycles read_end[OUTSTANDING], write_end[OUTSTANDING];
    cycles granted_reads, granted_writes, ended_reads, ended_writes;
    cycles read_pins, write_pins, credit, now, last_read, last_data;
    number chosen_read, chosen_write, turn, *readers, *writers, count_readers, count_writers;
    cycles *data; number first_data, count_data, room_data;
    cycles next; number changed; /* when something happens next, unless something has changed since */
};

struct run {
    const struct model *m;
    struct line *lines;
    struct part *parts;
    struct node *nodes;
    struct client *clients;
    struct channel *channels;
    number *todo, count, *asking, askers;
    number item, slot, passed, walk, asked, dropped; /* passed: slots of the item */
    cycles cycle, first, *walk_end;
    cycles end;
};

#define INSIDE __attribute__((visibility("hidden"))) /* not of the library's interface: may be put inline */

/* A part, or a client, looks again at what it waits for. */
INSIDE void wake(struct run *r, number part);
INSIDE void wake_client(struct run *r, number client);

/* A token into a stream at a time, and out of it. */
INSIDE void tokens_push(struct run *r, number stream, cycles time);
INSIDE void tokens_pop(struct run *r, number stream, cycles time);

/* From when on a stream has room for one more token; NEVER: not known. */
INSIDE cycles room(const struct run *r, number stream);

#endif
