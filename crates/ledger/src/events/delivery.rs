//! Events of connections, their gates and targets.

use super::Entry;

pub(super) static ENTRIES: &[Entry] = &[
    entry!(
        GateClosed, Warn, "A connection's gate closed",
        "Nothing is sent over this connection. Writes wait in their lanes, no attempt is charged, and the connection is probed with growing pauses. One event stands for the whole outage.",
        "The destination refuses connections, does not answer, or the network is cut.",
        "See that the destination runs: `consign status` has the last answer, `consign check FILE --live` tries it. The gate opens by itself.",
        ["code": "the failure's code", "error": "what was said", "held": "writes that wait"]
    ),
    entry!(
        GateHalfOpen, Debug, "A gate is half open",
        "The connection answers, or the longest pause is over, so one write is sent to see whether writing works. A probe that passes is not enough: a ping may pass while writes vanish.",
        "The course of things after an outage.",
        "Nothing.",
        ["by": "probe or backoff"]
    ),
    entry!(
        GateOpened, Info, "A connection's gate opened",
        "A write was delivered; all lanes of this connection are delivered again.",
        "The destination is back.",
        "Nothing. `outage_ended` has what was held and resent.",
        ["lasted_ms": "how long it was closed"]
    ),
    entry!(
        TargetClosed, Warn, "A target takes no writes",
        "One table, topic or host of a connection fails while the connection works. Its writes wait and are tried with growing pauses; other targets go on. One event stands for the whole outage.",
        "The target is away or overloaded, or a proxy before it answers for it (502, 503, 504).",
        "See that the target runs: `consign status` has the last answer. It goes on by itself.",
        ["target": "the target", "code": "the failure's code", "error": "what was said"]
    ),
    entry!(
        TargetOpened, Info, "A target takes writes again",
        "A write of it was delivered, and all that waited for it are delivered again.",
        "The target is back.",
        "Nothing. `outage_ended` has what was held and resent.",
        ["target": "the target", "lasted_ms": "how long it was closed"]
    ),
    entry!(
        OutageStarted, Warn, "An outage started",
        "A connection or one target of it takes no writes. Its lanes wait; other targets go on.",
        "See the message: the first failure stands there.",
        "`consign status` shows what waits and how much quota is left.",
        ["outage": "the report's number", "target": "the target, or none for the whole connection", "code": "the first failure's code", "drill": "whether a drill made it"]
    ),
    entry!(
        OutageEnded, Info, "An outage ended",
        "Its gate is open again, and everything it held has left its lanes. The fields add the outage up, and `consign outages` keeps them; `copies_possible` is the most second copies that may exist at destinations which do not drop a repeat.",
        "The destination is back.",
        "Nothing, unless `copies_possible` or `parked` is not zero: then `consign events --code may_have_landed` and `consign events --code parked`.",
        ["outage": "the report's number", "target": "the target, or none for the whole connection", "lasted_ms": "how long it lasted", "held": "writes that waited", "resent": "writes sent again", "delivered": "writes delivered since", "sent_unconfirmed": "sent, not confirmed", "parked": "writes parked", "copies_possible": "second copies that may exist"]
    ),
    entry!(
        Throttled, Info, "A target asks to wait",
        "The lane pauses for as long as the destination asked, at most an hour. No attempt is charged. One event stands for the whole episode.",
        "The destination's rate limit.",
        "Where it lasts: limit the rate yourself with a class (`rate_per_s`), or ask for a higher limit.",
        ["after_ms": "the pause", "code": "the destination's code"]
    ),
    entry!(
        Denied, Error, "A destination denies access",
        "The target, or the whole connection, is halted: nothing parks, and one write tries again at the longest pause. Somebody must act.",
        "A credential ran out or was changed, or a grant is missing.",
        "Renew the credential or the grant. Secrets are read again at a reload (SIGHUP). Delivery goes on by itself at the next try.",
        ["target": "the target, or none for the whole connection", "code": "the destination's code", "error": "what was said"]
    ),
    entry!(
        DeniedEnded, Info, "A destination allows access again",
        "Delivery goes on.",
        "The credential or grant was renewed.",
        "Nothing.",
        ["lasted_ms": "how long it was halted"]
    ),
    entry!(
        HaltedOnOneWrite, Error, "A lane is held up by one write",
        "It failed as often as its policy allows, but no other write of its target was delivered since, so nothing shows whether this write or the destination is at fault. It is tried again at the longest pause and nothing is parked.",
        "The lane must keep its order and the failing write is at its head, or it is the only write there is.",
        "Look at the failure. If the destination is at fault mend it, and the lane goes on. If the write is, set `after_park: continue`, which lets the next write be tried as evidence.",
        ["write_key": "the write", "attempts": "its attempts", "code": "the last failure's code", "error": "what was said"]
    ),
    entry!(
        HaltEnded, Info, "A lane goes on",
        "The write that held it up was delivered, parked or skipped.",
        "The destination is back, or somebody acted.",
        "Nothing.",
        ["lasted_ms": "how long it was held up"]
    ),
    entry!(
        BatchSplit, Info, "A refused batch is split",
        "The destination takes a batch whole or not at all and refused this one, so its halves are sent alone until the write that is at fault is found. The others are delivered.",
        "One write of the batch breaks a rule of the destination.",
        "Nothing here: the write that is at fault has an event of its own, `refused`.",
        ["writes": "how many were in the batch", "code": "the destination's code"]
    ),
    entry!(
        HeldKeysFull, Error, "Too many order keys are held",
        "The lane remembers at most `max_held_keys` keys whose writes wait behind a parked one. It looks no further ahead, so that order is kept, and waits.",
        "Many writes are parked under `after_park: hold_key`.",
        "Mend what made the writes park: `consign events --code parked`. `after_park: continue` does not hold keys.",
        ["lane": "the lane", "held": "keys that are held"]
    ),
    entry!(
        ClockWentBack, Warn, "The wall clock went back",
        "Nobody can tell how old a write that may have landed is, so the time for which its destination recognises a repeat counts as passed. Such writes are treated as at least once.",
        "The clock was set by hand, or the machine was restored from a snapshot.",
        "Let the clock be kept by NTP and slewed, not stepped. `window_passed` names the writes.",
        ["by_ms": "how far it went back"]
    ),
    entry!(
        LateAnswer, Info, "An answer came after its deadline",
        "It came before the resend and settles the write: no copy was made.",
        "The destination is slower than the send's `timeout`.",
        "Where it is frequent, raise `timeout`.",
        ["write_key": "the write", "late_ms": "how late"]
    ),
    entry!(
        ConnectionFenced, Warn, "A connection was fenced and is rebuilt",
        "A request did not end after it was cancelled. Its connection is cut off, whatever it still does counts as may have landed, and a new one is made. For an ordered target this is an interruption in which an older write may still land after a newer.",
        "A destination or client library that hangs.",
        "See whether the destination hangs. After three of these the connection halts: see `connection_halted`.",
        ["requests": "requests that did not end", "nth": "the how-manieth time"]
    ),
    entry!(
        ConnectionHalted, Error, "A connection is halted until restart",
        "Three of its instances had to be fenced. A fourth would only pile up requests that never end, so nothing is sent over it.",
        "A plugin or destination that does not let go of requests.",
        "Mend the destination or update the plugin, then restart the host. Pending writes are safe.",
        ["fenced": "how often it was fenced"]
    ),
    entry!(
        ConnectionRebuilt, Info, "A connection was rebuilt",
        "A new instance took over; writes under way on the old one count as may have landed.",
        "It was fenced, a plugin panicked, or its secrets changed.",
        "Nothing.",
        ["generation": "the new instance's number"]
    ),
    entry!(
        InspectionContradicted, Error, "A destination contradicts the promise",
        "What makes a repeat harmless is not there, so the send is treated as at least once: a write that may have landed is resent once, and may then be a second copy. A send with `require: effectively_once` does not send.",
        "No unique index on the key's column, no duplicates window on the stream, duplicate detection switched off.",
        "The message says what is missing. Make it at the destination; it is inspected again when the gate next opens. `consign check FILE --live` inspects at once.",
        ["operation": "the operation", "promised": "level two", "level": "what holds", "detail": "what was found"]
    ),
    entry!(
        InspectionWarning, Warn, "An inspection found something to look at",
        "The promise holds, but something at the destination or source may surprise you.",
        "For example a limit after which a broker drops messages, or a window shorter than your outages.",
        "The message says what it is.",
        ["operation": "the operation", "warning": "what was found"]
    ),
];
