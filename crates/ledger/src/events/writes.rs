//! Events of single writes.

use super::Entry;

pub(super) static ENTRIES: &[Entry] = &[
    entry!(
        Parked, Error, "A write was parked",
        "It left its lane and is kept whole among the failed messages. The lane goes on.",
        "Its attempts or its age were spent while other writes of the target went through, or its error handler said so.",
        "The message has what was said, and Failed messages keeps the write with everything that was tried. Mend the cause; sent again, the write keeps its key.",
        ["failed_id": "the failed message", "write_key": "the write", "reason": "why it was parked", "code": "the last failure's code", "applied": "no or maybe"]
    ),
    entry!(
        Refused, Error, "A destination refused a write",
        "It has not landed and never will as it is. It is parked at once, unless an error handler decides otherwise; the lane goes on.",
        "The body breaks a rule of the destination: a schema, a constraint, a size.",
        "The message has the answer. Mend the body where it is made, or the destination's rule; Failed messages keeps the write whole.",
        ["failed_id": "the failed message", "write_key": "the write", "code": "the destination's code", "error": "what it said"]
    ),
    entry!(
        MayHaveLanded, Error, "A write may have landed and is parked",
        "Twice no answer came, and other writes of the target went through since. A third copy is not sent, because this destination does not drop repeats.",
        "The write is lost on its way back again and again, or it makes the destination hang after taking it.",
        "Look at the destination by the write key: is the write there? If it is, confirm it; if it is not, send it again. Failed messages keeps it whole.",
        ["failed_id": "the failed message", "write_key": "the write", "copies_possible": "copies that may exist"]
    ),
    entry!(
        WriteHeld, Warn, "A write may have landed and is held",
        "Its resend was ambiguous too, and a further one could be a second copy. It waits in its lane (`on_ambiguous: hold`); writes with the same order key wait behind it. One event stands for the episode of a lane.",
        "The destination takes writes and does not answer.",
        "Look at the destination, then decide. `on_ambiguous: park` takes such writes out of the way, `on_ambiguous: retry` sends them until one is confirmed, and may make several copies.",
        ["write_key": "the write", "held": "how many are held"]
    ),
    entry!(
        MessageHeld, Warn, "A direct send fails and its message is held",
        "The source keeps the message, its lease is extended, and the send is tried again at the longest pause. What must not overtake it waits behind it. One event for each message.",
        "The destination refuses this message, or its attempts are spent, and no error handler says what to do with it.",
        "Mend what the message of the event names; it goes on by itself. With `on_failure: { handler: isolate_poison }` such a message is set aside and the rest flows; with `delivery: buffered` the write is parked instead.",
        ["seq": "the write's number in its lane", "code": "the destination's code"]
    ),
    entry!(
        WindowPassed, Warn, "A repeat is no longer recognised",
        "A write that may have landed is older than the time for which its destination recognises a repeat. It now counts as at least once: it is sent again and may be a second copy, or is parked with `on_window_passed: park`.",
        "An outage longer than the destination's window; or a copy that left inside the window and was answered after it.",
        "Lengthen the window at the destination if it allows it. `on_window_passed: park` leaves such writes to you.",
        ["write_key": "the write", "window_ms": "the window", "age_ms": "since the first copy that may have landed", "action": "resent or parked"]
    ),
    entry!(
        WriteExpired, Warn, "A write expired",
        "It was older than `expires_after` and was dropped, as the configuration says. One event stands for the episode of a lane; `consign status` counts them.",
        "An outage longer than `expires_after`.",
        "Nothing, if that is what you want. Otherwise raise or remove `expires_after`.",
        ["write_key": "the first one", "count": "how many so far"]
    ),
    entry!(
        WriteDropped, Warn, "A write was dropped because its lane is full",
        "The lane has `when_full: drop`. The message's other writes were accepted. One event stands for the episode of a lane; `consign status` counts them.",
        "A destination is away or slow for longer than the lane's quota lasts.",
        "Raise `quota`, or remove `when_full: drop`, which then holds the source instead.",
        ["message_id": "the first message", "count": "how many so far"]
    ),
    entry!(
        WriteSkipped, Warn, "A write was skipped",
        "It was given up on purpose and never counts as delivered.",
        "An error handler or a person said so.",
        "Nothing. A person's skip can be taken back until retention ends.",
        ["write_key": "the write", "by": "who or what skipped it"]
    ),
    entry!(
        WriteDiverted, Info, "A write was diverted",
        "It was settled here and went to another send with a key derived from its own, in one record.",
        "An error handler said so.",
        "Nothing.",
        ["write_key": "the write", "to": "the other send"]
    ),
    entry!(
        DependentDropped, Warn, "A write was dropped with its parent",
        "It waited for a write that was skipped, purged, expired or routed again, so it is not sent.",
        "The send has `after:`, and its parent did not end as delivered.",
        "If it must be sent all the same, set the send free of its parent, or send its message again.",
        ["write_key": "the write", "parent": "its parent's key", "reason": "how the parent ended"]
    ),
    entry!(
        HandlerFailed, Error, "An error handler failed",
        "It gave an error, panicked or did not answer. A buffered write is parked; a direct one is held, or dropped where its source cannot hand the message over again.",
        "A fault of the handler, or of what it asks.",
        "Read the message. The write itself is among the failed messages.",
        ["handler": "the handler", "error": "what it said"]
    ),
    entry!(
        HandlerBlocked, Warn, "An error handler blocks a write",
        "The handler said that the lane must not go past this write. It is tried again at the longest pause, and what is behind it waits.",
        "The handler's rule for this kind of failure.",
        "Mend the cause that the message names. The lane goes on once the write is delivered or skipped.",
        ["write_key": "the write", "handler": "the handler", "code": "the last failure's code"]
    ),
    entry!(
        ReplayOvertakes, Warn, "A write that is sent again is older than what was delivered since",
        "It joins the end of its lane. Newer writes with the same order key were delivered while it was parked, so it may replace a newer state.",
        "It was parked with `after_park: continue`.",
        "If the destination keeps the last state only, look whether the newer one stands; skip the old one if so.",
        ["write_key": "the write", "newer": "writes delivered since"]
    ),
    entry!(
        EditNotApplied, Warn, "Your edit was not applied",
        "The destination recognised the key: the first copy had landed, and the edited body was dropped as its repeat.",
        "A write that may have landed was edited and sent again with the same key.",
        "To have the edited body there as a further write, edit it with a new key; the first copy stays.",
        ["failed_id": "the failed message", "write_key": "the write"]
    ),
    entry!(
        FailedExpired, Warn, "Failed messages were deleted because their time was over",
        "They had not changed for as long as `failed.retention` says. Those that still waited for a person are gone with their writes and never count as delivered.",
        "`failed.retention` is set.",
        "Nothing, if that is what you want. Otherwise raise or remove `failed.retention`, act sooner, or keep a copy: `consign failed export`.",
        ["count": "how many", "waiting": "how many of them waited for a person", "retention": "how long they were kept", "first_id": "the first one", "last_id": "the last one"]
    ),
];
