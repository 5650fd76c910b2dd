//! Events of the host itself: its start and end, its configuration, its plugins, its operators.

use super::Entry;

pub(super) static ENTRIES: &[Entry] = &[
    entry!(
        HostStarted, Info, "The host started",
        "The configuration is valid, the buffer is open, and adapters are being started. Every write that was pending is still there, with the key it had.",
        "Somebody, or the service manager, ran `consign run`.",
        "Nothing. `consign status` shows what is pending and which gates are open.",
        ["version": "the host's version", "config": "the configuration's file", "pending": "writes that were pending at start"]
    ),
    entry!(
        HostStopped, Info, "The host stopped",
        "Sources were stopped first, then requests under way were given time to end, then the buffer was closed and marked as closed cleanly. Pending writes stay in the buffer.",
        "SIGTERM or SIGINT, or the last adapter ended.",
        "Nothing. Start again with `consign run FILE`.",
        ["pending": "writes that stay in the buffer", "uptime_ms": "how long it ran"]
    ),
    entry!(
        UncleanExit, Warn, "The last run did not end cleanly",
        "The host found its buffer without the mark of a clean exit. Nothing that was accepted is lost. Writes that may have been on their way are resent: with the same key where the destination drops repeats, once more at most where a repeat is a second copy.",
        "kill -9, a power cut, a crash of the host or of a plugin, or the system ran out of memory.",
        "Look for the cause in the system's log (`journalctl -u consign`, `dmesg`). `consign events --code may_have_landed` lists writes of which a copy may exist. `host_crashed` beside it says that native code ended the run.",
        ["pending": "writes that are pending", "maybe_in_flight": "those of them that may have landed", "replayed_records": "records read back"]
    ),
    entry!(
        HostCrashed, Error, "Native code ended the last run",
        "The process got a signal that native code causes (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE). Nothing that was accepted is lost. Writes that plugins had are sent one by one now, so that another crash tells which of them it is; a write that plugins had at three such crashes parks as `suspected_crash`.",
        "A plugin that a message, or its server's answer, makes crash; a fault of its libraries; a stack that ran over.",
        "The thread is named after its plugin. Look for the core dump (`coredumpctl`) and give it to the plugin's author. Nothing has to be typed: if a message is at fault, it parks by itself at the third crash, and the rest goes on.",
        ["signal": "the signal", "thread": "the thread that got it", "writes": "buffered writes that plugins had", "at_unix_ms": "when"]
    ),
    entry!(
        CrashNoteUnreadable,
        Warn,
        "The notes of a crash could not be used",
        "What the host writes down as it crashes, or its list of the last crashes, could not be read or written. The host started all the same. A crash may be missing in the count of three.",
        "The note was cut short, the file was changed, or the data folder's rights are wrong.",
        "The message names the file. What could not be read lies beside it as `.unreadable`; it may be deleted once it was looked at.",
        []
    ),
    entry!(
        DrainTimeout, Warn, "The host stopped before all requests had ended",
        "Requests that were under way were cancelled. Their writes stay in the buffer and count as may have landed.",
        "A destination answers more slowly than the time that stopping is given.",
        "Nothing has to be done: the writes are resent at the next start. To have fewer of them, give the service manager more time (`TimeoutStopSec`), or shorten the send's `timeout`.",
        ["in_flight": "requests that were cancelled"]
    ),
    entry!(
        ConfigReloaded, Info, "The configuration was reloaded",
        "The new configuration was checked whole, then put in force. Lanes keep their pending writes.",
        "SIGHUP, or somebody asked for it.",
        "Nothing. `consign show config` prints what is in force.",
        ["config": "the file", "changed": "adapters and connections that changed"]
    ),
    entry!(
        ConfigRejected, Error, "A new configuration was not accepted",
        "The file has errors. The host goes on with the configuration it had; no message is touched.",
        "The file was edited and not checked.",
        "Run `consign check FILE`: it names file, line and what was expected. Then reload again.",
        ["config": "the file", "errors": "how many", "first": "the first error"]
    ),
    entry!(
        PluginRefused, Error, "A plugin was not loaded",
        "Nothing of it ran. Connections that need it cannot be used, and the host does not start with them.",
        "The file is no plugin, was built for another ABI or target, needs a newer system library, differs from `plugins.lock`, or its declaration contradicts itself.",
        "The message names both sides. `consign plugins verify FILE` shows the whole check. Build the plugin with the SDK of this host, or install the plugin that belongs to it.",
        ["file": "the plugin's file", "reason": "what differs"]
    ),
    entry!(
        PluginOverclaims, Error, "A plugin promises more than it declares",
        "Its answer for one send is better than its declaration. The host uses the declaration; what you are shown is true.",
        "A fault of the plugin.",
        "Report it to the plugin's author with the message. `consign promises` shows the declaration, `consign check FILE` what your configuration gets.",
        ["operation": "the operation", "declared": "what it declares", "answered": "what it answered"]
    ),
    entry!(
        PluginPanicked, Error, "A plugin panicked",
        "The panic was caught; the host runs on. Writes of that request count as may have landed, and the connection is rebuilt.",
        "A fault of the plugin, often met by one unusual message.",
        "Report it to the plugin's author with the message and the place. If one write does it again and again it parks: `consign events --code parked`.",
        ["plugin": "the plugin and its version", "call": "what the host had called", "panic": "the panic's message"]
    ),
    entry!(
        PluginMisbehaved, Error, "A plugin answered what it must not",
        "Too few or too many outcomes, an answer for a request that was over, or an outcome nobody knows. Writes without a proper outcome count as may have landed.",
        "A fault of the plugin.",
        "Report it to the plugin's author with the message.",
        ["plugin": "the plugin and its version", "fault": "what was wrong"]
    ),
    entry!(
        SuspectedCrash, Error, "A write was parked because the host crashed on it",
        "A plugin had this write at three crashes of the host in a row. It is parked so that the host can go on; nothing of it is lost. What else plugins had at all three is parked with it.",
        "A message that makes native code of a plugin crash the process.",
        "`consign failed show ID` has its body: give it to the plugin's author, with the core dump. Once the plugin withstands it, `consign failed send-again ID`; a write that only stood beside the guilty one may be sent again at once.",
        ["failed_id": "its number in Failed messages", "plugin": "the plugin that had it", "seq": "its number in its lane", "crashes": "how many", "signal": "the last signal", "next": "what to type"]
    ),
    entry!(
        DrillStarted, Info, "A drill started",
        "A connection is treated as if its destination were away. The destination itself is not touched. Writes wait in their lanes as in a real outage.",
        "Somebody started it.",
        "Nothing: it ends by itself. Its end, and what was held and resent, are in `drill_ended`.",
        ["for_ms": "how long it will last", "swallow_replies": "requests go out and their answers are thrown away", "who": "who started it"]
    ),
    entry!(
        DrillEnded, Info, "A drill ended",
        "The connection is open again and its lanes are being delivered.",
        "Its time was over, or somebody ended it.",
        "Compare `held` and `delivered` with what you expected.",
        ["held": "writes that waited", "resent": "writes that were sent again"]
    ),
    entry!(
        AdapterPaused, Info, "An adapter is paused",
        "Its source is not read. What was accepted is still delivered.",
        "An operator paused it.",
        "Resume it when it is time.",
        ["who": "who paused it"]
    ),
    entry!(
        AdapterResumed, Info, "An adapter goes on",
        "Its source is read again from where it was.",
        "An operator resumed it.",
        "Nothing.",
        ["who": "who resumed it"]
    ),
    entry!(
        OperatorActed, Info, "An operator acted on failed messages",
        "Messages were sent again, routed again, edited, skipped, restored, confirmed, moved or purged. Each message keeps who did it and when.",
        "A command, or the console.",
        "Nothing. Each failed message keeps its whole history.",
        ["act": "what was done", "who": "who did it", "count": "how many messages", "failed_id": "the message, where it is one"]
    ),
    entry!(
        AccessDenied, Warn, "A request to the console was refused",
        "The token was missing or wrong. Nothing was done. One event stands for all refusals of an episode.",
        "A script with an old `CONSIGN_TOKEN`, or somebody who should not be there.",
        "Give the right token, or find out who asks: the message has the address.",
        ["peer": "the address", "path": "what was asked for"]
    ),
];
