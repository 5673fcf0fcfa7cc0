/* Events of nodes in the order of their cycles; see groups.py. Plain C, called with arrays that numpy owns. */
#include <stdint.h>

typedef int32_t number;

struct side { /* of a node: one end of a stream */
    const int64_t *cycle, *clock; /* rising */
    int64_t length, code, token;
    number *group;                /* result: of each token, or null */
};

/* The groups; sides of a node in the order in which events of a cycle stand. */
int64_t groups_of(number nodes, const number *node_side, const struct side *sides, int64_t *next,
                  number *node_group, number *begins, number *clock, number *cycle, number *event, number *token)
{
    number groups = 0, events = 0;
    for (number n = 0; n < nodes; n++) {
        number from = node_side[n], to = node_side[n + 1];
        node_group[n] = groups;
        for (;;) {
            int64_t least = INT64_MAX;
            for (number s = from; s < to; s++)
                if (next[s] < sides[s].length && sides[s].cycle[next[s]] < least)
                    least = sides[s].cycle[next[s]];
            if (least == INT64_MAX)
                break;
            begins[groups] = events;
            if (cycle)
                cycle[groups] = (number)least;
            for (number s = from; s < to; s++) {
                const struct side *side = &sides[s];
                int64_t at = next[s];
                for (; at < side->length && side->cycle[at] == least; at++) {
                    if (begins[groups] == events)
                        clock[groups] = (number)side->clock[at];
                    if (side->group)
                        side->group[at] = groups;
                    if (token)
                        token[events] = (number)(side->token + at);
                    event[events++] = (number)side->code;
                }
                next[s] = at;
            }
            groups++;
        }
    }
    node_group[nodes] = groups;
    begins[groups] = events;
    return groups;
}
