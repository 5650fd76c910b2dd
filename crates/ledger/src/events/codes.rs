//! The codes themselves.

use super::{Entry, catalogue};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fmt, str::FromStr, sync::OnceLock};

macro_rules! codes {
    ($($variant:ident = $name:literal,)*) => {
        /// The code of a kind of event. Stable: never renamed, never reused. Each one's meaning is
        /// its [`Entry`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum Code {
            $(#[serde(rename = $name)] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it stands in the log, in JSON and on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

codes! {
    HostStarted = "host_started",
    HostStopped = "host_stopped",
    UncleanExit = "unclean_exit",
    HostCrashed = "host_crashed",
    CrashNoteUnreadable = "crash_note_unreadable",
    DrainTimeout = "drain_timeout",
    ConfigReloaded = "config_reloaded",
    ConfigRejected = "config_rejected",
    PluginRefused = "plugin_refused",
    PluginOverclaims = "plugin_overclaims",
    PluginPanicked = "plugin_panicked",
    PluginMisbehaved = "plugin_misbehaved",
    SuspectedCrash = "suspected_crash",
    DrillStarted = "drill_started",
    DrillEnded = "drill_ended",
    AdapterPaused = "adapter_paused",
    AdapterResumed = "adapter_resumed",
    OperatorActed = "operator_acted",
    AccessDenied = "access_denied",
    SourceFault = "source_fault",
    SourceRecovered = "source_recovered",
    SourceRewound = "source_rewound",
    SourceMoved = "source_moved",
    SourceBlocked = "source_blocked",
    SourceUnblocked = "source_unblocked",
    RefusedAtSource = "refused_at_source",
    MessageDropped = "message_dropped",
    Discarded = "discarded",
    ConditionError = "condition_error",
    TransformFailed = "transform_failed",
    ProcessorFailed = "processor_failed",
    TemplateFailed = "template_failed",
    IdempotencyConflict = "idempotency_conflict",
    KeyWindowShortened = "key_window_shortened",
    GateClosed = "gate_closed",
    GateHalfOpen = "gate_half_open",
    GateOpened = "gate_opened",
    TargetClosed = "target_closed",
    TargetOpened = "target_opened",
    OutageStarted = "outage_started",
    OutageEnded = "outage_ended",
    Throttled = "throttled",
    Denied = "denied",
    DeniedEnded = "denied_ended",
    HaltedOnOneWrite = "halted_on_one_write",
    HaltEnded = "halt_ended",
    BatchSplit = "batch_split",
    HeldKeysFull = "held_keys_full",
    ClockWentBack = "clock_went_back",
    LateAnswer = "late_answer",
    ConnectionFenced = "connection_fenced",
    ConnectionHalted = "connection_halted",
    ConnectionRebuilt = "connection_rebuilt",
    InspectionContradicted = "inspection_contradicted",
    InspectionWarning = "inspection_warning",
    Parked = "parked",
    Refused = "refused",
    MayHaveLanded = "may_have_landed",
    WriteHeld = "write_held",
    MessageHeld = "message_held",
    WindowPassed = "window_passed",
    WriteExpired = "write_expired",
    WriteDropped = "write_dropped",
    WriteSkipped = "write_skipped",
    WriteDiverted = "write_diverted",
    DependentDropped = "dependent_dropped",
    HandlerFailed = "handler_failed",
    HandlerBlocked = "handler_blocked",
    ReplayOvertakes = "replay_overtakes",
    EditNotApplied = "edit_not_applied",
    FailedExpired = "failed_expired",
    BufferFailed = "buffer_failed",
    BufferCorruption = "buffer_corruption",
    BufferHealed = "buffer_healed",
    BufferTailCut = "buffer_tail_cut",
    LaneOrphaned = "lane_orphaned",
    LaneFull = "lane_full",
    LaneHasRoom = "lane_has_room",
    DiskLow = "disk_low",
    DiskFull = "disk_full",
    DiskHasRoom = "disk_has_room",
    LedgerFull = "ledger_full",
    LedgerLost = "ledger_lost",
    ReserveReleased = "reserve_released",
    EventsDropped = "events_dropped",
    Unrecognised = "unrecognised",
}

impl Code {
    /// What the catalogue says of it.
    #[must_use]
    pub fn entry(self) -> &'static Entry {
        static BY_CODE: OnceLock<HashMap<Code, &'static Entry>> = OnceLock::new();
        // A test holds that every code has its entry; the fallback keeps this free of panics.
        static NONE: Entry = Entry {
            code: Code::Unrecognised,
            level: super::Severity::Info,
            title: "",
            what: "",
            why: "",
            fix: "",
            fields: &[],
        };
        BY_CODE
            .get_or_init(|| catalogue().map(|entry| (entry.code, entry)).collect())
            .get(&self)
            .copied()
            .unwrap_or(&NONE)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Code {
    type Err = String;

    /// Reads a code; the error names the nearest one.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(code) = Self::ALL.iter().find(|code| code.name() == text) {
            return Ok(*code);
        }
        Err(match super::nearest(text) {
            Some(code) => format!("`{text}` is no event code; the nearest is `{code}`"),
            None => format!("`{text}` is no event code: `consign explain` lists all"),
        })
    }
}
