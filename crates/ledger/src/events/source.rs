//! Events between a source and acceptance.

use super::Entry;

pub(super) static ENTRIES: &[Entry] = &[
    entry!(
        SourceFault, Error, "A source failed",
        "It is started again with growing pauses. Nothing is lost: what was not accepted was not acknowledged. One event stands for all failures until it runs again.",
        "Its broker is away, access was withdrawn, a folder or port is missing, or another process has it.",
        "Read the message; `consign check FILE --live` tries the connection. The source comes back by itself once the cause is gone.",
        ["kind": "down, denied, config or other", "code": "the source's code", "retry_after_ms": "the next start"]
    ),
    entry!(
        SourceRecovered, Info, "A source runs again",
        "It hands messages over from where it was.",
        "The cause of its failure is gone.",
        "Nothing.",
        ["lasted_ms": "how long it was away", "times": "how often it failed"]
    ),
    entry!(
        SourceRewound, Warn, "A source started before the place that had been accepted",
        "Messages that were accepted before are handed over once more. With a stable identity they are recognised and acknowledged without a second write; otherwise they are accepted as new.",
        "Somebody reset the group's offset or the consumer, or the stream was made anew.",
        "Nothing, unless you did not expect it: then find out who moved the position. `repeat` in `consign status` counts what was recognised.",
        ["partition": "the partition", "accepted": "the place that had been accepted", "started": "where it started"]
    ),
    entry!(
        SourceMoved, Info, "A source continues from another place",
        "The file was truncated, rotated or replaced, or its stored position is no longer there. What follows has a new identity.",
        "Log rotation, a new file under the old name, or retention at the broker.",
        "Nothing where it is rotation. Where `lost` is not zero the source removed messages before they were read: give it longer retention.",
        ["partition": "the file or partition", "from": "where it was", "to": "where it continues", "lost": "messages that were gone, where that is known"]
    ),
    entry!(
        SourceBlocked, Warn, "A source is held",
        "A message cannot be accepted now, so it is held and tried again, and what comes after it in its partition waits. Nothing is lost. The message of the event says why. One event stands for the whole episode.",
        "A lane that one of its routes needs is full, because a destination is away or slow for longer than its quota lasts; the disk is full; a direct send fails; or a template of the route fails or is null for this very message, which no waiting mends.",
        "A full lane: `consign status` shows it and its gate; more `quota` buys time, `when_full: drop` gives the writes up instead, and then the promise says so. A template: give the route a `when` that such messages do not pass, or the template a default (`{{ .body.id ?? \"none\" }}`), and restart.",
        ["lane": "the lane that is full", "reason": "lane_full, disk_full, buffer_failed or held"]
    ),
    entry!(
        SourceUnblocked, Info, "A source is read again",
        "There is room.",
        "The lane was delivered, or its quota was raised.",
        "Nothing.",
        ["lasted_ms": "how long it was held", "times": "how often it met the limit"]
    ),
    entry!(
        RefusedAtSource, Warn, "A source refuses what it is offered",
        "Messages were turned away before they were accepted (wrong login, too large, not the expected type). Their senders were told so. One event stands for the whole episode.",
        "A client that is set up wrongly, or a limit that is too small.",
        "The message has the first refusal. Compare the source's settings in `consign show config` with what the client sends.",
        ["status": "the answer", "reason": "why", "peer": "who sent it, where known"]
    ),
    entry!(
        MessageDropped, Error, "A message could not be accepted and was dropped",
        "Its source cannot hand it over again and no error handler took it. It is lost to this host; its sender was told so where the protocol allows. It never counts as delivered.",
        "A direct send failed, a processor failed or a template could not be rendered, on a session-based source.",
        "Use `delivery: buffered` for the send, so that a destination's failure does not reach the source, or give the route an error handler. The message is named in the fields.",
        ["message_id": "the message", "reason": "what failed", "error": "what was said"]
    ),
    entry!(
        Discarded, Info, "A message was discarded",
        "No route claimed it. It was acknowledged and nothing was sent.",
        "Its routes' conditions do not match; you asked for these events with `log_discards: true`.",
        "`consign explain FILE MESSAGE` says of every route why it did not claim it. A last route without a condition claims everything left.",
        ["routing_key": "its routing key", "reason": "no_route"]
    ),
    entry!(
        ConditionError, Warn, "A condition failed to evaluate",
        "It counts as not matching, and the next route was tried. One event stands for the whole episode of a route.",
        "A field is missing or of another type than the expression assumes.",
        "Try it: `consign explain FILE MESSAGE`. Give the expression a fallback: `(to_int(.body.amount) ?? 0) > 0`.",
        ["error": "what the expression said", "message_id": "the first message"]
    ),
    entry!(
        TransformFailed, Warn, "A transform gave an error",
        "The message was acknowledged and discarded, as if no route had claimed it. Only the first one of a route has an event; `consign status` counts them all.",
        "The body is not what the transform expects.",
        "Try it: `consign explain FILE MESSAGE`. Use a processor instead where a failure must hold the message.",
        ["transform": "which of the route's transforms", "error": "what it said", "message_id": "the first message"]
    ),
    entry!(
        ProcessorFailed, Error, "A processor failed",
        "It is handled as a failed delivery: the error handler decides, and with none the message is held, or dropped where its source cannot hand it over again.",
        "What it asks is away, or it met a message it cannot process. A plugin that panics or misses its deadline counts as well.",
        "Read the message. A processor that enriches from elsewhere needs that place to be up.",
        ["processor": "which one", "error": "what it said", "message_id": "the message"]
    ),
    entry!(
        TemplateFailed, Error, "A template could not be rendered",
        "A `{{ … }}` of a send gave an error for this message, so its write could not be made and nothing of the message has left. A source that would hand it over again is held; any other sender is told that the message is refused (HTTP: 400). One event stands for the whole episode.",
        "A field that the template needs is missing.",
        "Try it: `consign explain FILE MESSAGE`. Give the expression a fallback, or a condition that keeps such messages away.",
        ["field": "the field of the send's config", "error": "what it said", "message_id": "the message"]
    ),
    entry!(
        IdempotencyConflict, Warn, "One idempotency key came with two bodies",
        "The second request was answered with 422 and not accepted; the first one's message stands.",
        "A client that uses a key again for another message, or changes the body in a retry (a time, a signature).",
        "Tell the client's owner: one key for each message, and the same bytes in every retry.",
        ["principal": "the client", "key": "a digest of its key", "peer": "its address"]
    ),
    entry!(
        KeyWindowShortened, Warn, "Known keys were dropped before their time",
        "The store of known messages reached `key_quota`, so its oldest part was dropped. A repeat of a message from before `since` would be accepted as new.",
        "More messages than the quota is made for.",
        "Raise `key_quota`, or shorten `idempotency_window`. `consign promises` shows the window that holds.",
        ["window_ms": "the window that holds now", "since_unix_ms": "the oldest key that is known"]
    ),
];
