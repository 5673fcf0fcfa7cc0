/* The channels of memory of a run, and the clients that ask them. */
#ifndef CHANNELS_H
#define CHANNELS_H

#include "streams.h"

/* What a client asks for next, as far as it is known; to be called when its streams have changed. */
INSIDE void channel_ask(struct run *r, number client);

/* When something happens at a channel next, or NEVER; and that it happens. */
INSIDE cycles channel_next(const struct run *r, struct channel *c);
INSIDE void channel_act(struct run *r, struct channel *c);

#endif
